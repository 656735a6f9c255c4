// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv contains helpers for the test suites that use a real API server.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/test/need"
)

// Environment is an envtest environment whose control plane is berth-apiserver, as in berth up. It serves no Pods and no Services.
type Environment struct {
	root, dir string
	plane     *controlplane.ControlPlane
	envtest   envtest.Environment
}

// New returns an environment that the caller has to start. root is the path of the project relative to the directory of the test.
func New(root string) *Environment {
	return &Environment{root: root, envtest: envtest.Environment{
		UseExistingCluster: ptr.To(true), CRDDirectoryPaths: []string{crds(root)}, ErrorIfCRDPathMissing: true}}
}

// Start starts the API server and installs the kinds. It returns the configuration of an administrator, with the limits of requests that envtest sets.
func (e *Environment) Start() (*rest.Config, error) {
	var err error
	if e.dir, err = os.MkdirTemp("", "berth-api-"); err != nil {
		return nil, err
	}
	options := controlplane.Options{StateDir: e.dir, Assets: filepath.Join(e.root, "bin")}
	if e.plane, err = controlplane.Start(context.Background(), options); err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server (make apiserver builds it): %w", err), e.Stop())
	}
	config := e.plane.Config()
	config.QPS, config.Burst = 1000, 2000
	e.envtest.Config = config
	if _, err = e.envtest.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("install the kinds: %w", err), e.Stop())
	}
	if err := waitForRoles(config); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return config, nil
}

// waitForRoles waits until the roles of Kubernetes exist, which users other than the administrator need. berth up does not wait for them.
func waitForRoles(config *rest.Config) error {
	discovery, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return discovery.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
}

// Kubeconfig returns the kubeconfig of an administrator.
func (e *Environment) Kubeconfig() []byte { return e.plane.Kubeconfig() }

// Stop stops the API server and removes its files.
func (e *Environment) Stop() error {
	err := e.envtest.Stop() // leaves the API server running, because envtest did not start it
	if e.plane != nil {
		err = errors.Join(err, e.plane.Stop())
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

// StartTimeout bounds the start of etcd and kube-apiserver. The default of envtest, 20 seconds, is too short on a machine that is busy with other tests.
const StartTimeout = 2 * time.Minute

// WithPods returns a control plane with the kinds of Berth whose kube-apiserver also serves Pods, for the tests that need them. The caller has to start it.
func WithPods(root string) *envtest.Environment {
	return &envtest.Environment{
		CRDDirectoryPaths:        []string{crds(root)},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: StartTimeout,
		BinaryAssetsDirectory:    need.Assets(root),
	}
}

func crds(root string) string { return filepath.Join(root, "config", "crd", "bases") }

// CheckLeaks returns an error that lists the goroutines that did not exist at the time of before. It ignores the goroutines of idle connections, of logging and
// of signal handling, because these exit later or never.
func CheckLeaks(before goleak.Option) error {
	return goleak.Find(before,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
		goleak.IgnoreAnyFunction("net/http.(*http2clientConnReadLoop).run"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("os/signal.loop"),
		goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"),
	)
}
