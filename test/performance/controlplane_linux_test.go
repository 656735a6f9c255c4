// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	planeStarts = 10
	// planeWrites is the number of status writes in each of three rounds.
	planeWrites = 100
)

// TestControlPlane_StartAndMemory compares berth-apiserver, the control plane of berth up, with etcd and kube-apiserver. Before berth-apiserver existed, berth
// up ran these two programs and kube-controller-manager, which this test does not start.
func TestControlPlane_StartAndMemory(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	crds := envtest.CRDInstallOptions{Paths: []string{filepath.Join("..", "..", "config", "crd", "bases")}, ErrorIfPathMissing: true}
	state, data := stateDirectory(t), t.TempDir()
	var ours, theirs, memory, writes []float64
	for i := range planeStarts {
		began := time.Now()
		plane, err := controlplane.Start(ctx, controlplane.Options{StateDir: state, Assets: filepath.Join("..", "..", "bin")})
		g.Expect(err).NotTo(HaveOccurred())
		stop := sync.OnceValue(plane.Stop)
		t.Cleanup(func() { _ = stop() })
		ours = append(ours, milliseconds(time.Since(began)))
		if i >= rounds {
			g.Expect(stop()).To(Succeed())
			continue
		}
		_, err = envtest.InstallCRDs(plane.Config(), crds)
		g.Expect(err).NotTo(HaveOccurred())
		write := statusWriteTime(ctx, g, plane.Config())
		memory = append(memory, float64(statusField(t, childNamed(t, os.Getpid(), "berth-apiserver"), "VmRSS"))/1024)

		// By default, envtest starts etcd without syncing writes to the disk. berth up syncs them, so the reference must too.
		reference := &envtest.Environment{BinaryAssetsDirectory: os.Getenv("KUBEBUILDER_ASSETS"), ControlPlaneStartTimeout: testenv.StartTimeout}
		if reference.BinaryAssetsDirectory == "" {
			reference.BinaryAssetsDirectory = filepath.Join("..", "..", "bin")
		}
		reference.ControlPlane.Etcd = &envtest.Etcd{DataDir: data}
		reference.ControlPlane.Etcd.Configure().Disable("unsafe-no-fsync")
		t.Cleanup(func() { _ = reference.Stop() })
		began = time.Now()
		config, err := reference.Start()
		g.Expect(err).NotTo(HaveOccurred())
		theirs = append(theirs, milliseconds(time.Since(began)))
		_, err = envtest.InstallCRDs(config, crds)
		g.Expect(err).NotTo(HaveOccurred())
		writes = append(writes, write/statusWriteTime(ctx, g, config))
		g.Expect(reference.Stop()).To(Succeed())
		g.Expect(stop()).To(Succeed())
	}
	addLimitedFigure("control plane of berth up: start until the API is ready, p50", median(ours), 2000, " ms")
	addFigure("etcd and kube-apiserver: start until the API is ready, p50", "%.0f ms", median(theirs))
	expectAtMost(t, "control plane of berth up: start, relative to etcd and kube-apiserver", median(ours)/median(theirs), 0.6, 1.6, "×")
	expectAtMost(t, "control plane of berth up: resident memory", median(memory), 250, 1.3, " MiB")
	expectAtMost(t, "control plane of berth up: status write, relative to etcd and kube-apiserver, p50", median(writes), 1, 1.4, "×")
}

// statusWriteTime returns the median time of a write of the status of an Instance, in milliseconds.
func statusWriteTime(ctx context.Context, g Gomega, config *rest.Config) float64 {
	config = rest.CopyConfig(config)
	config.QPS = -1
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "written-"}}
	instance.Spec.Process.Command = []string{"true"}
	// The API server creates the namespace shortly after it is ready.
	g.Eventually(func() error { return api.Create(ctx, instance) }).WithTimeout(patience).Should(Succeed())
	var times []float64
	for i := range planeWrites {
		before := instance.DeepCopy()
		instance.Status.Incarnation = int64(i + 1)
		began := time.Now()
		g.Expect(api.Status().Patch(ctx, instance, client.MergeFrom(before))).To(Succeed())
		times = append(times, milliseconds(time.Since(began)))
	}
	return median(times)
}
