// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
)

// hostsForVariable names the environment variable with the duration of row S19, such as 5m. If the variable is not set, the row makes only a few
// rounds.
const hostsForVariable = "RACES_HOSTS_FOR"

func hostsFor() time.Duration {
	long, err := time.ParseDuration(cmp.Or(os.Getenv(hostsForVariable), "0s"))
	if err != nil {
		panic(hostsForVariable + ": " + err.Error())
	}
	return long
}

// hostManager is one of two managers that serve the same API server, each with its own state directory.
type hostManager struct {
	name, dir   string
	host        *host.Host
	stopManager func()
}

// start starts a manager that uses the state directory with the content that the previous manager left.
func (s *hostManager) start(elect bool) {
	GinkgoHelper()
	var err error
	s.host, err = host.New(host.Options{StateDir: s.dir, ShimPath: env.shim})
	Expect(err).NotTo(HaveOccurred())
	options := manager.Options{
		Runtimes: runtime.NewRegistry(s.host, logr.Discard()), LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience,
		LeaderElection: elect, LeaderElectionNamespace: env.namespace,
	}
	if fault == nil || !fault.noHostNames {
		options.Host = manager.Host{Name: s.name, Namespace: env.namespace, Runtimes: []v1alpha1.RuntimeType{v1alpha1.RuntimeHost}}
	}
	mgr, err := manager.New(config, options)
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mgr.Start(ctx)
	}()
	s.stopManager = func() {
		GinkgoHelper()
		cancel()
		Eventually(ended).Should(BeClosed())
		for _, p := range suiteProcesses() {
			if p.isShim() {
				env.abandoned = append(env.abandoned, p.PID)
			}
		}
		Expect(s.host.Close()).To(Succeed())
		s.stopManager = nil
	}
}

func (s *hostManager) stop() {
	GinkgoHelper()
	if s.stopManager != nil {
		s.stopManager()
	}
}

var _ = row("S19", "two managers with two state directories: each object runs on one host, whatever happens to managers, processes and labels", func(ctx context.Context) {
	env.stopManager()
	managers := [2]*hostManager{{name: "one", dir: env.stateDir + "-one"}, {name: "two", dir: env.stateDir + "-two"}}
	for _, s := range managers {
		env.stateDirs = append(env.stateDirs, s.dir)
		s.start(false)
		DeferCleanup(s.stop)
	}
	objects := make([]process.Object, 0, 8)
	for i := range cap(objects) {
		if i%2 == 0 {
			objects = append(objects, newInstance(fmt.Sprintf("agent-%d", i)))
		} else {
			objects = append(objects, newServer(fmt.Sprintf("web-%d", i)))
		}
	}
	create(ctx, objects...)
	Eventually(ctx, notes).WithArguments("starts", "").Should(HaveLen(len(objects)), "one process per object: one start for each object")
	Consistently(ctx, notes).WithArguments("violations", "").Should(BeEmpty(), "one process per object: no two ran at once under one name")
	expectProcesses(ctx)

	strategy := newStrategy("lint", 3)
	Expect(k8s.Create(ctx, strategy)).To(Succeed())
	gate := gateFile("long")
	runs := []*v1alpha1.StrategyRun{newRun(strategy, "long-0", 0, gate), newRun(strategy, "long-1", 0, gate)}
	for _, run := range runs {
		Expect(k8s.Create(ctx, run)).To(Succeed())
	}
	waitForStarted(ctx, runs)

	over := time.Now().Add(hostsFor())
	random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 19)) //nolint:gosec // a seed
	for round := 0; round < rounds(4, 2) || time.Now().Before(over); round++ {
		disturbHosts(ctx, managers, objects, random, round%2 == 1)
		expectProcesses(ctx, runs[0].Name, runs[1].Name)
		expectNoOverlap()
		for _, run := range runs {
			now, err := runNow(ctx, run)
			Expect(err).NotTo(HaveOccurred())
			Expect(now.Status.Outcome).To(BeEmpty(), "%s is running, but its outcome is %s", run.Name, now.Status.Outcome)
		}
		for _, object := range allObjects(ctx, NewGomega(func(message string, _ ...int) { Fail(message) })) {
			if end := object.GetProcessStatus().LastExit; end != nil {
				Expect(end.Reason).To(Or(Equal(v1alpha1.ReasonStopped), Equal(v1alpha1.ReasonFailed)), "one process per object: %s has last exit %v", object.GetName(), end)
			}
		}
	}

	Expect(os.WriteFile(gate, nil, 0o600)).To(Succeed())
	Expect(waitForCounted(ctx, strategy, len(runs)).Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: int64(len(runs))}))
	expectExecutedOnce(runs)
	Expect(k8s.Delete(ctx, strategy)).To(Succeed())
	for _, run := range runs {
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitForGone(ctx, run, "with two managers: ")
	}

	for _, object := range objects {
		Expect(k8s.Delete(ctx, object)).To(Succeed())
	}
	for _, object := range objects {
		waitForGone(ctx, object, "with two managers: ")
	}
	Expect(workloadPIDs("")).To(BeEmpty(), "no process survives its object")
	for _, s := range managers {
		Expect(runtimeTraces(s.dir)).To(BeEmpty())
		s.stop()
		Expect(os.RemoveAll(s.dir)).To(Succeed())
	}
})

// disturbHosts makes twelve random changes: disturbances and user operations. If elect is set, the managers elect a leader during these changes.
// Afterwards both managers run without an election again.
func disturbHosts(ctx context.Context, managers [2]*hostManager, objects []process.Object, random *rand.Rand, elect bool) {
	GinkgoHelper()
	if elect {
		for _, s := range managers {
			s.stop()
			s.start(true)
		}
	}
	for step := range 12 {
		object, s := objects[random.IntN(len(objects))], managers[random.IntN(len(managers))]
		switch random.IntN(5) {
		case 0: // a manager is replaced
			s.stop()
			s.start(elect)
		case 1: // a process is killed
			for _, p := range suiteProcesses() {
				if !p.isShim() && p.arg("-name") == object.GetName() {
					killProcess(p.Process)
				}
			}
		case 2:
			Expect(patchFormatted(ctx, object, restartPatch, fmt.Sprint(step, random.Int64()))).To(Succeed())
		case 3: // the object moves to that host, or stays there
			Expect(patchFormatted(ctx, object, `{"metadata":{"labels":{"berth.dev/host":%q}}}`, s.name)).To(Succeed())
		case 4: // the label is removed, as kubectl replace does
			Expect(patchFormatted(ctx, object, `{"metadata":{"labels":{"berth.dev/host":null}}}`)).To(Succeed())
		}
	}
	if elect {
		for _, s := range managers {
			s.stop()
			s.start(false)
		}
	}
}
