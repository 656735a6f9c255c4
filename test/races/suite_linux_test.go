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
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/plane"
)

const (
	interval = 20 * time.Millisecond
	// calm is how long something has to stay as it is.
	calm = 500 * time.Millisecond
	// specTime bounds one row; none needs a tenth of it on a good machine.
	specTime = 8 * time.Minute
)

var (
	// patience is how long to wait for something that has to happen.
	patience = 60 * time.Second
	// fault is what is taken out in this run; nil when all guards are in place.
	fault *tooth

	config *rest.Config
	// k8s is a user's client: it reads and writes without a cache.
	k8s      client.WithWatch
	failures plane.Failures
	// environment is the control plane of this run; nil when it was given one.
	environment *envtest.Environment
	// programs is where the binaries are; whatever runs from there was started by this suite.
	programs string
)

func TestMain(m *testing.M) {
	switch name := os.Getenv("RACES_BREAK"); name {
	case "":
	case "list":
		listTeeth()
		return
	case "build":
		if err := buildPrograms(os.Getenv(builtVariable)); err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		return
	default:
		if fault = toothOf(name); fault == nil {
			fmt.Println("no such row:", name)
			os.Exit(2)
		}
		if !fault.patient {
			patience = 10 * time.Second // it will not happen
		}
	}
	os.Exit(m.Run())
}

func TestRaces(t *testing.T) {
	before := goleak.IgnoreCurrent()
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(interval)
	SetDefaultConsistentlyDuration(calm)
	SetDefaultConsistentlyPollingInterval(interval)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "Races")
	if fault == nil {
		failures.Tell(t)
		NewWithT(t).Eventually(plane.Leaks).WithArguments(before).WithTimeout(patience).Should(Succeed(), "no goroutine is left")
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
	Expect(err).NotTo(HaveOccurred(), "start a control plane (make controlplane builds it)")
	config.QPS, config.Burst = 2000, 4000
	k8s, err = client.NewWithWatch(fault.users(config), client.Options{Scheme: manager.Scheme()})
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(func() {
	if environment != nil {
		Expect(environment.Stop()).To(Succeed())
	}
	if fault == nil {
		Expect(ours()).To(BeEmpty(), "no process of the suite is left")
		Expect(zombies()).To(BeEmpty(), "no child is left unreaped")
	}
})

// Whoever runs row after row, each in a process of its own, builds once, and has one control plane for many.
const (
	// builtVariable names a folder in which the programs are built already.
	builtVariable = "RACES_PROGRAMS"
	// planeVariable names the kubeconfig of a control plane that runs already, and that nobody else uses meanwhile.
	planeVariable = "RACES_PLANE"
)

// controlPlane starts a control plane, or takes the one that is there, emptied of what rows before may have left.
func controlPlane() (*rest.Config, error) {
	kubeconfig := os.Getenv(planeVariable)
	if kubeconfig == "" {
		environment = plane.New(filepath.Join("..", ".."))
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
	return config, disown(plain, "")
}

// buildPrograms builds what the suite runs.
func buildPrograms(dir string) error {
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/berth-shim", "./cmd/berth-lsp", "./test/races/workload", "./test/lspfake", "./test/performance/manager")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return nil
}

// linkPrograms gives the suite programs of its own that others have built.
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

// row is one row of the race table.
func row(id, text string, body func(ctx context.Context)) bool {
	return It(id+" "+text, Label(id), SpecTimeout(specTime+hostsFor()), func(ctx SpecContext) {
		// What it says with its guard taken out is what the tooth is about; the clean-up has other words.
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

// all does something n times at once, and fails when one of them did.
func all(n int, do func(i int) error) {
	GinkgoHelper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- do(i) }()
	}
	for range n {
		Expect(<-errs).To(Succeed())
	}
}
