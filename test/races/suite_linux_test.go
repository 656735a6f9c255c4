// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	interval = 20 * time.Millisecond
	// stablePeriod is how long a state has to remain unchanged.
	stablePeriod = 500 * time.Millisecond
	// specTime is the time limit of one row. On a fast machine no row needs a tenth of this time.
	specTime = 8 * time.Minute
)

var (
	// patience is how long to wait for an expected event.
	patience = 60 * time.Second
	// fault is the mutant that is active in this run; nil if all guards are in place.
	fault *mutant

	config *rest.Config
	// k8s is a user's client; it reads and writes without a cache.
	k8s      client.WithWatch
	failures testenv.Failures
	// environment is the control plane that this run started; nil if the run uses an existing control plane.
	environment *testenv.Environment
	// programs is the directory of the binaries. Every process whose binary is in this directory was started by this suite.
	programs string
)

func TestMain(m *testing.M) {
	switch name := os.Getenv("RACES_BREAK"); name {
	case "":
	case "list":
		listMutants()
		return
	case "build":
		if err := buildPrograms(os.Getenv(builtVariable)); err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		return
	default:
		if fault = mutantOf(name); fault == nil {
			fmt.Println("no such row:", name)
			os.Exit(2)
		}
		if !fault.patient {
			patience = 10 * time.Second // the expected event will not happen
		}
	}
	os.Exit(m.Run())
}

func TestRaces(t *testing.T) {
	before := goleak.IgnoreCurrent()
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(interval)
	SetDefaultConsistentlyDuration(stablePeriod)
	SetDefaultConsistentlyPollingInterval(interval)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "Races")
	if fault == nil {
		failures.Report(t)
		NewWithT(t).Eventually(testenv.CheckLeaks).WithArguments(before).WithTimeout(patience).Should(Succeed(), "no goroutine is left")
	}
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(logr.Discard())
	var err error
	programs, err = os.MkdirTemp("", "berth-races-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() error { return os.RemoveAll(programs) })
	programs, err = filepath.EvalSymlinks(programs)
	Expect(err).NotTo(HaveOccurred())
	if built := os.Getenv(builtVariable); built != "" {
		Expect(linkPrograms(built)).To(Succeed())
	} else {
		Expect(buildPrograms(programs)).To(Succeed())
	}

	config, err = controlPlane()
	Expect(err).NotTo(HaveOccurred(), "start an API server")
	config.QPS, config.Burst = 2000, 4000
	k8s, err = client.NewWithWatch(fault.users(config), client.Options{Scheme: manager.Scheme()})
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(func() {
	if environment != nil {
		Expect(environment.Stop()).To(Succeed())
	}
	if fault == nil {
		Expect(suiteProcesses()).To(BeEmpty(), "no process of the suite is left")
		Expect(zombies()).To(BeEmpty(), "no child is left unreaped")
	}
})

// A caller that runs each row in a separate process sets these environment variables. This lets the caller build the programs only once, and use the same
// control plane for many rows.
const (
	// builtVariable is the environment variable with a directory that already contains the programs.
	builtVariable = "RACES_PROGRAMS"
	// planeVariable is the environment variable with the kubeconfig of a running control plane that nothing else uses at the same time.
	planeVariable = "RACES_PLANE"
)

// controlPlane starts a control plane, or uses the one that planeVariable names, after it has removed all objects that earlier rows may have left
// there.
func controlPlane() (*rest.Config, error) {
	kubeconfig := os.Getenv(planeVariable)
	if kubeconfig == "" {
		environment = testenv.New(filepath.Join("..", ".."))
		return environment.Start()
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	plain, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return nil, err
	}
	return config, removeObjects(plain, "")
}

// buildPrograms builds the programs that the suite runs.
func buildPrograms(dir string) error {
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "./cmd/berth-shim", "./cmd/berth-lsp", "./test/races/workload", "./test/lspfake", "./test/performance/manager")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return nil
}

// linkPrograms links programs that are already built into the directory of the suite.
func linkPrograms(built string) error {
	entries, err := os.ReadDir(built)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.Link(filepath.Join(built, entry.Name()), filepath.Join(programs, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// row defines one row of the race table.
func row(id, text string, body func(ctx context.Context)) bool {
	return It(id+" "+text, Label(id), SpecTimeout(specTime+hostsFor()), func(ctx SpecContext) {
		// A mutant has to make the row itself fail, so the message is checked here: the clean-up that follows may fail with other messages.
		DeferCleanup(func() {
			if report := CurrentSpecReport(); fault != nil && report.Failed() {
				message := strings.Join(strings.Fields(report.FailureMessage()), " ")
				if at := strings.Index(message, fault.sees); at >= 0 {
					fmt.Printf("\n%s saw %s\n", id, message[at:min(len(message), at+160)])
				}
			}
		})
		body(ctx)
	})
}

var _ = ReportAfterEach(func(report SpecReport) {
	if report.State.Is(types.SpecStateSkipped) {
		return
	}
	verdict := "ok"
	if report.Failed() {
		verdict = "FAILED"
	}
	failures.Note(report)
	fmt.Printf("\n%s %s %.1fs\n", strings.Fields(report.LeafNodeText)[0], verdict, report.RunTime.Seconds())
})

// inParallel calls do n times concurrently, and fails if any call fails.
func inParallel(n int, do func(i int) error) {
	GinkgoHelper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- do(i) }()
	}
	for range n {
		Expect(<-errs).To(Succeed())
	}
}
