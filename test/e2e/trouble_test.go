// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = Describe("A process with a failure", func() {
	DescribeTable("stalls with a message instead of a crash loop",
		func(ctx context.Context, reason, words string, prepare func() *testObject) {
			s := prepare().create(ctx)
			s.waitForCondition(ctx, v1alpha1.ConditionStalled, reason)
			Expect(s.condition(v1alpha1.ConditionStalled).Message).To(ContainSubstring(words))
			Expect(s.status().Incarnation).To(BeNumerically("<=", 1))
			Expect(s.status().RestartCount).To(BeZero())
			Expect(processTree(s.mark)).To(BeEmpty())
		},
		Entry("command not found", NodeTimeout(timeout), v1alpha1.ReasonCommandNotFound, "no-such-program", func() *testObject {
			return devServer("notfound", "", "no-such-program")
		}),
		Entry("no permission", NodeTimeout(timeout), v1alpha1.ReasonPermissionDenied, "README.md", func() *testObject {
			return devServer("denied", "", filepath.Join(suiteBerth.root, "README.md"))
		}),
		Entry("missing directory", NodeTimeout(timeout), v1alpha1.ReasonWorkingDirMissing, "/no/such/dir", func() *testObject {
			return devServer("nodir", "/no/such/dir", "gohello")
		}),
	)

	It("starts by itself when the directory, the program and the permission appear", NodeTimeout(startTimeout), func(ctx context.Context) {
		dir := filepath.Join(GinkgoT().TempDir(), "project")
		s := devServer("late", dir, "./serve").create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonWorkingDirMissing)
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		s.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonCommandNotFound)
		program := filepath.Join(dir, "serve")
		Expect(os.WriteFile(program, []byte("#!/bin/sh\nexec gohello\n"), 0o600)).To(Succeed())
		s.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonPermissionDenied)
		Expect(os.Chmod(program, 0o755)).To(Succeed())
		s.waitUntilReady(ctx)
		Expect(s.status().Incarnation).To(BeEquivalentTo(4), "one start for each cause, none in between")
	})

	It("starts by itself when the missing secret is created", NodeTimeout(startTimeout), func(ctx context.Context) {
		s := devServer("secret", "", "gohello")
		name := s.GetName()
		s.GetProcessSpec().Process.Env = append(s.GetProcessSpec().Process.Env, v1alpha1.EnvVar{
			Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: name, Key: "token"}},
		})
		s.create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonInvalidEnvironment)
		Expect(s.condition(v1alpha1.ConditionStalled).Message).To(ContainSubstring(name))

		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			StringData: map[string]string{"token": "hush-hush"},
		}
		Expect(suiteBerth.client.Create(ctx, secret)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(suiteBerth.client.Delete(ctx, secret)).To(Succeed()) })
		s.waitUntilReady(ctx)
		Expect(processesWithVariable("TOKEN", "hush-hush")).To(HaveLen(1), "only the server has the secret in its environment")
		Expect(suiteBerth.kubectl(ctx, "get", s.path(), "-o", "yaml")).NotTo(ContainSubstring("hush-hush"))
		Expect(filesWith(suiteBerth.state, "hush-hush", "etcd")).To(BeEmpty(), "the secret is on disk")
	})

	It("opens the circuit breaker, and a new spec closes it", NodeTimeout(startTimeout), func(ctx context.Context) {
		s := devServer("loop", "", "false")
		spec := s.GetProcessSpec()
		spec.Backoff = v1alpha1.BackoffPolicy{InitialSeconds: ptr.To[int32](0), MaxSeconds: ptr.To[int32](0)}
		spec.Breaker.FailureThreshold = ptr.To[int32](3)
		s.create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionCircuitOpen, v1alpha1.ReasonCircuitOpen)
		Expect(s.condition(v1alpha1.ConditionStalled).Reason).To(Equal(v1alpha1.ReasonCircuitOpen))
		Expect(s.status().Incarnation).To(BeEquivalentTo(3))

		s.patch(ctx, func() { s.GetProcessSpec().Process.Command = []string{"gohello"} })
		s.waitUntilReady(ctx)
		s.waitForResponse("Hello")
	})

	DescribeTable("is stopped with all its processes",
		func(ctx context.Context, processes int, script string) {
			s := instance("stubborn", "/bin/sh", "-c", script)
			s.GetProcessSpec().Process.Stop.GracePeriodSeconds = ptr.To[int32](1)
			s.create(ctx).waitUntilReady(ctx)
			Eventually(func() []int64 { return processTree(s.mark) }).Should(HaveLen(processes))
			suiteBerth.run(ctx, "stop", s.path())
			s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
			Expect(processTree(s.mark)).To(BeEmpty())
		},
		Entry("ignored SIGTERM", NodeTimeout(startTimeout), 1, `trap "" TERM HUP INT; while :; do read -r line; done`),
		Entry("a child that ignores SIGTERM", NodeTimeout(startTimeout), 2, `(trap "" TERM; exec sleep 1000) & wait`),
		Entry("setsid", NodeTimeout(startTimeout), 2, `setsid sleep 1000 & wait`),
		Entry("a double fork", NodeTimeout(startTimeout), 2, `(setsid sleep 1000 &); exec sleep 1000`),
		Entry("a closed output", NodeTimeout(startTimeout), 1, `exec >&- 2>&-; exec sleep 1000`),
		Entry("a stopped process", NodeTimeout(startTimeout), 1, `kill -STOP $$$$`), // in a command of a spec, $$ stands for $
	)

	It("bounds a flood of output without newlines, and does not slow down other objects", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		flood := devServer("flood", "", "python3", "-c", `
import os
block = b"x" * 65536
while True:
    os.write(1, block)
`).create(ctx)
		Eventually(func(g Gomega) {
			g.Expect(flood.read(ctx)).To(Succeed())
			g.Expect(flood.status().Process).NotTo(BeNil())
		}).Should(Succeed())
		By("serving another object at the same time")
		calm := devServer("calm", "", "gohello").create(ctx).waitUntilReady(ctx)
		for n := int64(2); n <= 4; n++ {
			suiteBerth.run(ctx, "restart", calm.path())
			calm.waitForIncarnation(ctx, n)
		}
		By("keeping disk and memory within bounds")
		// The shim checks periodically whether the log exceeds its limit, and then frees the old part of the log. On a busy machine such a check may be late.
		Eventually(func() int64 { return diskUsage(suiteBerth.state, "etcd") }).WithTimeout(10 * time.Second).Should(BeNumerically("<", 512<<20))
		Expect(residentMemory(suiteBerth.cmd.Process.Pid)).To(BeNumerically("<", 512<<20))
		Expect(len(suiteBerth.run(ctx, "logs", "--tail", "1", flood.path()))).To(BeNumerically("<=", 16<<10))
		flood.delete(ctx)
	})

	It("survives SIGKILL of the shim", NodeTimeout(startTimeout), func(ctx context.Context) {
		s := devServer("orphan", "", "gohello").create(ctx).waitUntilReady(ctx)
		pid := pidOf(s)
		shim := parentOf(pid)
		Expect(commandOf(shim)).To(ContainSubstring("berth-shim"))
		Expect(syscall.Kill(int(shim), syscall.SIGKILL)).To(Succeed())
		Eventually(func() string { return commandOf(shim) }).Should(BeEmpty())

		By("keeping the server running")
		s.waitForResponse("Hello")
		Expect(processTree(s.mark)).To(ConsistOf(pid))
		By("stopping it")
		suiteBerth.run(ctx, "stop", s.path())
		s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
		Expect(processTree(s.mark)).To(BeEmpty())
	})
})

// diskUsage returns the disk space of a directory in bytes. It skips the subdirectory with the name in the parameter "except".
func diskUsage(dir, except string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(dir, except) {
			return fs.SkipDir
		}
		if info, err := entry.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += stat.Blocks * 512
			}
		}
		return nil
	})
	return sum
}

// filesWith returns the small files in a directory that contain the words. It skips the subdirectory with the name in the parameter "except".
func filesWith(dir, words, except string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(dir, except) {
			return fs.SkipDir
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.Size() < 8<<20 {
			if text, err := os.ReadFile(path); err == nil && containsBytes(text, words) {
				found = append(found, path)
			}
		}
		return nil
	})
	return found
}
