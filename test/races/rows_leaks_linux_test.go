// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// resourceUse counts the resources of this process and its children.
type resourceUse struct{ files, zombies, processes, traces, routines int }

func countResources() resourceUse {
	GinkgoHelper()
	h := resourceUse{zombies: len(zombies()), processes: len(suiteProcesses()), traces: len(runtimeTraces(env.stateDir))}
	descriptors, err := os.ReadDir("/proc/self/fd")
	Expect(err).NotTo(HaveOccurred())
	for _, descriptor := range descriptors {
		// Connections to the API server are opened and closed at any time.
		if target, err := os.Readlink("/proc/self/fd/" + descriptor.Name()); err == nil && !strings.HasPrefix(target, "socket:") {
			h.files++
		}
	}
	stacks := make([]byte, 8<<20)
	stacks = stacks[:goruntime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("internal/runtime/host.")) {
			h.routines++
		}
	}
	return h
}

var _ = row("R28", "a start that fails half-way leaves nothing behind", func(ctx context.Context) {
	program := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(env.dir, name)
		Expect(os.WriteFile(path, []byte(content), mode)).To(Succeed())
		return path
	}
	plain := program("plain", "#!/bin/true\n", 0o644)
	orphan := program("orphan", "#!/does/not/exist\n", 0o755)
	garbage := program("garbage", "\x7fno program", 0o755)
	for _, f := range []string{orphan, garbage, plain} {
		info, err := os.Stat(f)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeNumerically(">", 0))
	}
	if env.host.Containment() == shim.Cgroup { // otherwise no shim is kept ready
		Eventually(ctx, func() bool { return slices.ContainsFunc(suiteProcesses(), suiteProcess.isWarmShim) }).Should(BeTrue())
	}
	before := countResources()
	for round := range rounds(4, 1) {
		cases := map[string][]string{
			v1alpha1.ReasonCommandNotFound:   {"/does/not/exist"},
			v1alpha1.ReasonPermissionDenied:  {plain},
			v1alpha1.ReasonWorkingDirMissing: workloadCommand("x"),
			"interpreter":                    {orphan},
			v1alpha1.ReasonStartFailed:       {garbage},
		}
		var failing []*v1alpha1.Instance
		for reason, argv := range cases {
			i := newInstance(fmt.Sprintf("%s-%d", strings.ToLower(reason), round))
			i.Spec.Process.Command = argv
			i.Spec.Backoff.InitialSeconds, i.Spec.Backoff.MaxSeconds = ptr.To[int32](60), ptr.To[int32](60)
			if reason == v1alpha1.ReasonWorkingDirMissing {
				i.Spec.Process.WorkingDir = "/does/not/exist"
			}
			create(ctx, i)
			failing = append(failing, i)
			waitFor(ctx, i, "fails with the expected reason", func(o *v1alpha1.Instance) bool {
				return o.Status.LastExit != nil && (o.Status.LastExit.Reason == reason || reason == "interpreter")
			})
		}
		for _, i := range failing {
			Expect(k8s.Delete(ctx, i)).To(Succeed())
			waitForGone(ctx, i)
		}
	}
	// Now not even the shim can be started. Everything that was prepared for the start has to be removed with the object.
	Expect(os.Rename(env.shim, env.shim+".away")).To(Succeed())
	var first, tries atomic.Int32
	env.faults.setHooks(func(w *faultInjector) {
		w.onStart = func(p runtime.Process, start func() error) error {
			err := start()
			if strings.HasSuffix(p.Name, "/shimless") {
				tries.Add(1)
			} else {
				first.Add(1)
			}
			return err
		}
	})
	last, shimless := newInstance("last"), newInstance("shimless")
	create(ctx, last) // this object uses the shim that was kept ready, if there was one
	Eventually(ctx, first.Load).Should(BeNumerically(">=", 1))
	create(ctx, shimless)
	Eventually(ctx, tries.Load).Should(BeNumerically(">=", 3))
	for _, i := range []*v1alpha1.Instance{last, shimless} {
		Expect(k8s.Delete(ctx, i)).To(Succeed())
		waitForGone(ctx, i)
	}
	Expect(os.Rename(env.shim+".away", env.shim)).To(Succeed())
	Expect(workloadPIDs("")).To(BeEmpty())
	Eventually(ctx, func(g Gomega) {
		now := countResources()
		g.Expect(now.zombies).To(BeNumerically("<=", before.zombies), "left behind: zombies")
		g.Expect(now.processes).To(BeNumerically("<=", before.processes), "left behind: processes")
		g.Expect(now.traces).To(BeNumerically("<=", before.traces), "left behind: directories or cgroups")
		g.Expect(now.routines).To(BeNumerically("<=", before.routines), "left behind: goroutines")
		g.Expect(now.files).To(BeNumerically("<=", before.files), "left behind: open files")
	}).WithPolling(10 * interval).Should(Succeed()) // each poll reads all processes of this machine
})
