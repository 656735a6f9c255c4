// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install checks with a real API server that the manifests of config/default are accepted, and that the policies in these manifests admit and
// refuse the intended objects.
package install

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	// patience bounds the time until a write takes effect in the API server. It is long because the machine may be busy.
	patience = 2 * time.Minute
	// poll is the polling interval.
	poll = 100 * time.Millisecond
)

var (
	root = filepath.Join("..", "..")
	// k8s is an administrator's client of this package's API server.
	k8s client.Client
	// discoveryClient reads the published schemas of the API server.
	discoveryClient *discovery.DiscoveryClient
	// kubeconfig is the path of the kubeconfig of another administrator, for programs that the tests start and for clients that impersonate an account.
	kubeconfig string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// TestPrograms_AreInstalled is skipped, as the only test of this package that runs, if the programs that all other tests need are not installed.
func TestPrograms_AreInstalled(t *testing.T) { need.Pods(t, root) }

func run(m *testing.M) (code int) {
	flag.Parse()
	if need.WithoutPods(root) != nil {
		_ = flag.Set("test.run", "^TestPrograms_AreInstalled$") // the flag exists in every test program
		return m.Run()
	}
	environment := &envtest.Environment{BinaryAssetsDirectory: need.Assets(root), ControlPlaneStartTimeout: testenv.StartTimeout}
	config, err := environment.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start a control plane:", err)
		return 1
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the control plane:", err)
			code = 1
		}
	}()
	folder, err := os.MkdirTemp("", "berth-install-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	kubeconfig = filepath.Join(folder, "kubeconfig")
	if err := prepare(environment); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scheme := manager.Scheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if k8s, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		fmt.Fprintln(os.Stderr, "create a client:", err)
		return 1
	}
	if discoveryClient, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		fmt.Fprintln(os.Stderr, "create a client:", err)
		return 1
	}
	if err := install(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "install config/default:", err)
		return 1
	}
	return m.Run()
}

func prepare(environment *envtest.Environment) error {
	user, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return fmt.Errorf("create a user: %w", err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		return fmt.Errorf("create a kubeconfig: %w", err)
	}
	return os.WriteFile(kubeconfig, text, 0o600)
}

// render returns the objects of the kustomization in a folder of the repository.
func render(ctx context.Context, folder string) ([]*unstructured.Unstructured, error) {
	var output bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(need.Assets(root), "kubectl"), "kustomize", filepath.Join(root, folder))
	command.Stderr = &output
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl kustomize %s: %w: %s", folder, err, output.String())
	}
	return parse(text)
}

// parse decodes YAML documents.
func parse(text []byte) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &o.Object); err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// install applies all objects of config/default with server-side apply, in the order in which kustomize prints them, and waits until the API server serves
// their kinds.
func install(ctx context.Context) error {
	objects, err := render(ctx, "config/default")
	if err != nil {
		return err
	}
	var kinds []string
	for _, o := range objects {
		if err := apply(ctx, o); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "CustomResourceDefinition" {
			kinds = append(kinds, o.GetName())
		}
	}
	for _, name := range kinds {
		if err := waitUntilServed(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, o *unstructured.Unstructured, options ...client.ApplyOption) error {
	return k8s.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), append(options, client.FieldOwner("install"), client.ForceOwnership)...)
}

// waitUntilServed waits until the API server serves a kind.
func waitUntilServed(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := k8s.Get(ctx, client.ObjectKey{Name: name}, crd)
		for _, condition := range crd.Status.Conditions {
			if err == nil && condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("read %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not served: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}
