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

// assets returns the directory with berth-apiserver.
func assets(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dir
}

// progressLog collects progress lines.
type progressLog struct {
	mu    sync.Mutex
	lines []string
}

func (s *progressLog) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *progressLog) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// TestControlPlane_RecoversAcrossRestarts uses one state directory throughout. After the owner is killed, the next Start finds the process running. After the
// owner and the process are killed, the next Start serves the stored data. After Stop, no process and no pid file remains.
func TestControlPlane_RecoversAcrossRestarts(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	progress := &progressLog{}
	opts := Options{StateDir: t.TempDir(), Assets: assets(t), Progress: progress.add}

	first, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	started := []record{first.child.record}
	t.Cleanup(func() {
		for _, rec := range started { // kill the processes that a failed test has left
			if alive, err := rec.alive(); err == nil && alive {
				_ = syscall.Kill(rec.PID, syscall.SIGKILL)
			}
		}
	})
	expectPrivate(g, opts.StateDir)
	expectNamespacesDeleted(ctx, g, first)

	_, err = Start(ctx, opts)
	g.Expect(err).To(MatchError(And(ContainSubstring("--state-dir"), ContainSubstring("process"))), "a second owner")

	// The owner exits without a shutdown. Its child keeps running, and the next Start finds it, even if the child does not respond for some seconds.
	g.Expect(first.abandon()).To(Succeed())
	g.Expect(first.child.process.Signal(syscall.SIGSTOP)).To(Succeed())
	paused := time.AfterFunc(4*time.Second, func() { _ = first.child.process.Signal(syscall.SIGCONT) })
	defer paused.Stop()
	second, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	g.Expect(second.child.record).To(Equal(first.child.record), "the same process")
	g.Expect(second.Kubeconfig()).To(Equal(first.Kubeconfig()))

	// The child dies together with the owner.
	g.Expect(second.abandon()).To(Succeed())
	g.Expect(second.child.process.Signal(syscall.SIGKILL)).To(Succeed())
	g.Eventually(second.child.ended, time.Minute).Should(BeTrue())
	third, err := Start(ctx, opts)
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	started = append(started, third.child.record)
	g.Expect(third.Kubeconfig()).To(Equal(first.Kubeconfig()), "kubeconfigs of earlier runs stay valid")
	g.Expect(third.Failed()).NotTo(Receive())

	// The stored data still exists.
	api, err := client.New(third.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kept"}, &corev1.ConfigMap{})).To(Succeed())

	g.Expect(third.Stop()).To(Succeed())
	for _, rec := range started {
		g.Expect(rec.alive()).To(BeFalse(), "process %d", rec.PID)
	}
	left, err := os.ReadDir(filepath.Join(opts.StateDir, "pids"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty())
	closeIdle(g, first, second, third)
}

// expectNamespacesDeleted checks that the API stores objects and that the controllers work.
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

// abandon leaves the child running, as if this process had been killed. It is for tests.
func (c *ControlPlane) abandon() error {
	c.endWatch()
	return releaseLock(c.lock)
}
