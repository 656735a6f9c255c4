// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readRecord returns the process in the pid file.
func readRecord(g Gomega, c *ControlPlane) record {
	var rec record
	data, err := os.ReadFile(c.dir.pid(program))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(data, &rec)).To(Succeed())
	return rec
}

func TestKilledChildIsRestarted(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	progress := &progressLog{}
	c, err := Start(ctx, Options{StateDir: t.TempDir(), Assets: assets(t), Progress: progress.add})
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	defer closeIdle(g, c)
	defer func() {
		g.Expect(c.Stop()).To(Succeed())
		g.Expect(c.restarts).To(BeEmpty(), "restarts after which the API is ready again do not count")
	}()
	api, err := client.New(c.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}}
	g.Eventually(func() error { return api.Create(ctx, kept) }, time.Minute, 100*time.Millisecond).Should(Succeed())

	for range 3 {
		before := readRecord(g, c)
		g.Expect(syscall.Kill(before.PID, syscall.SIGKILL)).To(Succeed())
		g.Eventually(func() int { return readRecord(g, c).PID }, time.Minute, 20*time.Millisecond).ShouldNot(Equal(before.PID), progress.String)
		again := &corev1.ConfigMap{}
		g.Eventually(func() error { return api.Get(ctx, client.ObjectKeyFromObject(kept), again) }, time.Minute, 100*time.Millisecond).Should(Succeed(), progress.String)
		g.Expect(again.UID).To(Equal(kept.UID))
	}
	expectNamespaceDeleted(ctx, g, api)
	g.Expect(c.Failed()).NotTo(Receive())
}

func TestRevive_FailsAfterTooManyRestarts(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	c := &ControlPlane{dir: dir}
	setDefaults(&c.opts)
	c.child, err = startChild(dir, program, []string{"/bin/sh", "-c", "echo the last words >&2; exit 1"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(c.child.done, time.Minute).Should(BeClosed())
	for range maxRestarts {
		_, ok := c.restarts.next(time.Now())
		g.Expect(ok).To(BeTrue())
	}
	g.Expect(c.revive(t.Context())).To(MatchError(And(
		ContainSubstring("berth-apiserver exited 9 times within 5m0s"), ContainSubstring(dir.log(program)), ContainSubstring("the last words"))))
}

func TestRestartsBackOff(t *testing.T) {
	g := NewWithT(t)
	var r restarts
	now := time.Now()
	before := time.Duration(0)
	for range maxRestarts {
		delay, ok := r.next(now)
		g.Expect(ok).To(BeTrue())
		g.Expect(delay).To(And(BeNumerically(">=", before), BeNumerically("<=", longestDelay)))
		before = delay
	}
	_, ok := r.next(now)
	g.Expect(ok).To(BeFalse(), "too many restarts within the window")
	delay, ok := r.next(now.Add(restartWindow))
	g.Expect(ok).To(BeTrue(), "the window is over")
	g.Expect(delay).To(Equal(firstDelay))
}
