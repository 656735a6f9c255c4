// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stubbornMark turns this test binary into a program that ignores SIGTERM. Once it ignores SIGTERM, the program creates the file that the variable names.
const stubbornMark = "BERTH_TEST_STUBBORN_MARK"

func TestMain(m *testing.M) {
	if mark := os.Getenv(stubbornMark); mark != "" {
		signal.Ignore(syscall.SIGTERM)
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			os.Exit(1)
		}
		time.Sleep(time.Hour) // killed long before this returns
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// assets returns the directory of the binaries, as in all packages: KUBEBUILDER_ASSETS, or else bin in the project.
func assets(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../bin")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dir
}

// said collects progress lines.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func records(c *ControlPlane) []record {
	var all []record
	for _, child := range c.children {
		all = append(all, child.record)
	}
	return all
}

// TestControlPlaneOverItsLife uses one state directory throughout. After the owner is killed, the next Start finds all processes running. After the owner is
// killed together with one process, the next Start replaces the others. After Stop, the next Start serves the stored data.
func TestControlPlaneOverItsLife(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	progress := &said{}
	opts := Options{StateDir: t.TempDir(), Assets: assets(t), Progress: progress.add}

	first, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	everything := records(first)
	t.Cleanup(func() {
		for _, rec := range everything { // kill the processes that a failed test has left
			if alive, err := rec.alive(); err == nil && alive {
				_ = syscall.Kill(rec.PID, syscall.SIGKILL)
			}
		}
	})
	expectPrivate(g, opts.StateDir)
	expectNamespacesDeleted(ctx, g, first)

	_, err = Start(ctx, opts)
	g.Expect(err).To(MatchError(And(ContainSubstring("--state-dir"), ContainSubstring("process"))), "a second owner")

	// The owner exits without a shutdown. Its children keep running, and the next Start finds them.
	g.Expect(first.abandon()).To(Succeed())
	second, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	g.Expect(records(second)).To(Equal(records(first)), "the same processes")
	g.Expect(second.Kubeconfig()).To(Equal(first.Kubeconfig()))

	// One child dies together with the owner: the others are stopped before new ones start.
	g.Expect(second.abandon()).To(Succeed())
	apiServer := second.children[1]
	g.Expect(apiServer.process.Signal(syscall.SIGKILL)).To(Succeed())
	g.Eventually(apiServer.ended, time.Minute).Should(BeTrue())
	third, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	everything = append(everything, records(third)...)
	for _, rec := range records(first) {
		g.Expect(rec.alive()).To(BeFalse())
	}
	g.Expect(third.Kubeconfig()).To(Equal(first.Kubeconfig()), "kubeconfigs of earlier runs stay valid")
	g.Expect(third.Failed()).NotTo(Receive())

	// The stored data still exists.
	api, err := client.New(third.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kept"}, &corev1.ConfigMap{})).To(Succeed())

	g.Expect(third.Stop()).To(Succeed())
	for _, rec := range everything {
		g.Expect(rec.alive()).To(BeFalse(), "process %d", rec.PID)
	}
	left, err := os.ReadDir(filepath.Join(opts.StateDir, "pids"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty())
	closeIdle(g, first, second, third)
}

// expectNamespacesDeleted checks that the API stores objects and that the controller manager works.
func expectNamespacesDeleted(ctx context.Context, g Gomega, c *ControlPlane) {
	api, err := client.New(c.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	// The API server itself creates the namespace default, shortly after it is ready.
	g.Eventually(func() error {
		return api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}})
	}, time.Minute, 100*time.Millisecond).Should(Succeed())
	expectNamespaceDeleted(ctx, g, api)
}

func expectNamespaceDeleted(ctx context.Context, g Gomega, api client.Client) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "passing"}}
	g.Expect(api.Create(ctx, namespace)).To(Succeed())
	g.Expect(api.Delete(ctx, namespace)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	}, 2*time.Minute, 200*time.Millisecond).Should(BeTrue(), "a deleted namespace is removed")
}

func expectPrivate(g Gomega, root string) {
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // etcd removes files while it runs
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		g.Expect(info.Mode().Perm()&0o077).To(BeZero(), "%s is %s", path, info.Mode())
		return nil
	})
	g.Expect(err).NotTo(HaveOccurred())
}
