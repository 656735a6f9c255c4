// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/testenv"
)

// patience bounds every wait. It is long because the machine may be busy.
const patience = 3 * time.Minute

var (
	// config and k8s connect to the API server; k8s reads and writes without a cache.
	config *rest.Config
	k8s    client.WithWatch
	// kubeconfig is the path of the file that managers use.
	kubeconfig string
	// shimPath, managerPath and workloadPath are the paths of programs that are built for this run.
	shimPath, managerPath, workloadPath string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts a control plane, builds the programs, runs the tests and prints all figures.
func run(m *testing.M) (code int, err error) {
	ctrl.SetLogger(logr.Discard())
	scratch, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	defer conformance.RemoveWorkload()
	if err := buildPrograms(scratch); err != nil {
		return 1, err
	}
	environment := testenv.WithPods(filepath.Join("..", ".."))
	// Each of several thousand servers needs a Service; the default range of a test control plane has 254 addresses.
	environment.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	if config, err = environment.Start(); err != nil {
		return 1, fmt.Errorf("start a control plane (make controlplane builds it): %w", err)
	}
	defer func() { _ = environment.Stop() }()
	if err := connect(environment, scratch); err != nil {
		return 1, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-interrupted
		leftovers.clear()
		_ = environment.Stop()
		_ = os.RemoveAll(scratch)
		os.Exit(130)
	}()
	code = m.Run()
	printFigures()
	return code, nil
}

// connect creates the client of the tests and the kubeconfig of the managers.
func connect(environment *envtest.Environment, scratch string) (err error) {
	config.QPS = -1
	if k8s, err = client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()}); err != nil {
		return err
	}
	if err := testenv.InstallClaimPolicy(backgroundContext, k8s); err != nil {
		return err
	}
	user, err := environment.AddUser(envtest.User{Name: "berth", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return fmt.Errorf("add a user for the managers: %w", err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		return err
	}
	kubeconfig = filepath.Join(scratch, "kubeconfig")
	return os.WriteFile(kubeconfig, text, 0o600)
}

func buildPrograms(scratch string) error {
	shimPath, managerPath, workloadPath = filepath.Join(scratch, "berth-shim"), filepath.Join(scratch, "manager"), filepath.Join(scratch, "workload")
	for path, source := range map[string]string{shimPath: "../../cmd/berth-shim", managerPath: "./manager", workloadPath: "./workload"} {
		build := exec.Command("go", "build", "-trimpath", "-o", path, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", source, err, out)
		}
	}
	return nil
}
