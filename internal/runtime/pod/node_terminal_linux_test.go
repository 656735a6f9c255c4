// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// TestTerminals_OnANode tests terminals on a real node.
func TestTerminals_OnANode(t *testing.T) {
	needCluster(t)
	api := clusterClient(t)
	namespace := namespaceFor(t, api, nil)
	t.Cleanup(conformance.RemoveWorkload)
	for name, test := range map[string]func(*cluster){
		"a question is visible and can be answered": testQuestion,
		"a program without a terminal is reported":  testTypeWithoutTerminal,
		"more terminals than connections":           testTerminalLimit,
		"a connection ends with its program":        testConnectionEndsWithProgram,
	} {
		t.Run(name, func(t *testing.T) { test(&cluster{newFixture(t, api, namespace), uuid.NewUUID()}) })
	}
}

// startQuestion starts a program that prints a question without a newline.
func (c *cluster) startQuestion() {
	c.Helper()
	c.Expect(c.Start(c.ctx, c.questionProcess(c.uid))).To(Succeed())
	c.await(facts.Running)
}

func (c *cluster) questionProcess(uid types.UID) runtime.Process {
	c.Helper()
	p := c.process(1, fmt.Sprintf(asRoot, os.TempDir(), os.TempDir()))
	p.UID, p.Command, p.Terminal = uid, []string{conformance.Workload(c.TB), "ask"}, &runtime.Terminal{Columns: 100, Rows: 30}
	p.Grace = 10 * time.Second
	return p
}

func (c *cluster) awaitText(text string) {
	c.Helper()
	c.Eventually(func() (string, error) {
		_, err := c.LastActivity(c.ctx, c.uid) // as the controller does; the call opens the connection to the terminal
		if err != nil {
			return "", err
		}
		view, err := c.Capture(c.ctx, c.uid)
		return view.Text, err
	}).WithTimeout(conformance.Timeout).WithPolling(50 * time.Millisecond).Should(HaveSuffix(text))
}

// awaitEvent waits until Events delivers the UID.
func (c *cluster) awaitEvent() {
	c.Helper()
	c.Eventually(c.Events()).WithTimeout(conformance.Timeout).Should(Receive(Equal(c.uid)))
}

func testQuestion(c *cluster) {
	c.startQuestion()
	c.awaitText("begun\nContinue? [y/N]")
	c.Eventually(func() bool { return c.hasTerminalConnection() }).WithTimeout(conformance.Timeout).Should(BeTrue())
	before, err := c.LastActivity(c.ctx, c.uid)
	c.Expect(err).NotTo(HaveOccurred())
	c.drainEvents()
	c.Expect(c.Watch(c.ctx, c.uid)).To(Succeed())
	c.Expect(c.Type(c.ctx, c.uid, runtime.Line("maybe"))).To(Succeed())
	c.awaitEvent()
	c.awaitText("answered <maybe>\nContinue? [y/N]")
	c.Expect(c.LastActivity(c.ctx, c.uid)).To(BeTemporally(">", before))
	c.Expect(c.Type(c.ctx, c.uid, runtime.Keystrokes{Interrupt: true})).To(Succeed())
	c.awaitText("interrupted\nContinue? [y/N]")

	// The next manager knows the logged lines and their times, but not the unfinished line.
	c.reopen()
	c.Eventually(c.Capture).WithArguments(c.ctx, c.uid).WithTimeout(conformance.Timeout).Should(HaveField("Text", HaveSuffix("interrupted")))
	c.Expect(c.LastActivity(c.ctx, c.uid)).To(BeTemporally(">", before))
	c.Expect(c.Type(c.ctx, c.uid, runtime.Line("y"))).To(Succeed())
	c.awaitText("goes on\nready")
}

// drainEvents discards the pending events.
func (c *cluster) drainEvents() {
	c.Helper()
	c.Eventually(func() bool {
		select {
		case <-c.Events():
			return false
		default:
			return true
		}
	}).WithTimeout(conformance.Timeout).Should(BeTrue())
}

func testTypeWithoutTerminal(c *cluster) {
	c.Expect(c.Type(c.ctx, c.uid, runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNotFound))
	c.Expect(c.Start(c.ctx, c.workloadProcess(1, "sleep"))).To(Succeed())
	c.await(facts.Running)
	c.Expect(c.Type(c.ctx, c.uid, runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNoTerminal))
}

func testTerminalLimit(c *cluster) {
	c.views.most = 1
	first := uuid.NewUUID()
	c.Expect(c.Start(c.ctx, c.questionProcess(first))).To(Succeed())
	c.Eventually(func() error { return c.Watch(c.ctx, first) }).WithTimeout(conformance.Timeout).Should(Succeed())
	c.startQuestion()
	c.Eventually(func() error {
		_, err := c.LastActivity(c.ctx, c.uid)
		return err
	}).WithTimeout(conformance.Timeout).Should(Succeed(), "from the log")
	c.Expect(c.Capture(c.ctx, c.uid)).To(HaveField("Text", "begun"), "only the log is available")
	c.Expect(c.Watch(c.ctx, c.uid)).NotTo(Succeed(), "there would be no event")
	c.Expect(c.Kill(c.ctx, first, 1)).To(Succeed())
	c.Eventually(func() error { return c.Watch(c.ctx, c.uid) }).WithTimeout(conformance.Timeout).Should(Succeed(), "a connection is free now")
}

func testConnectionEndsWithProgram(c *cluster) {
	c.startQuestion()
	c.awaitText("Continue? [y/N]")
	c.Eventually(func() error { return c.Watch(c.ctx, c.uid) }).WithTimeout(conformance.Timeout).Should(Succeed())
	c.Expect(c.Kill(c.ctx, c.uid, 1)).To(Succeed())
	c.await(facts.Exited)
	_, err := c.LastActivity(c.ctx, c.uid)
	c.Expect(err).NotTo(HaveOccurred(), "still available after the exit")
	c.Expect(c.Watch(c.ctx, c.uid)).To(MatchError(runtime.ErrNotFound))
	_, err = c.Capture(c.ctx, c.uid)
	c.Expect(err).To(MatchError(runtime.ErrNotFound))
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, c.pod(1).Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})).To(Succeed())
	c.Expect(c.ReleaseExited(c.ctx, c.uid, 1)).To(Succeed())
	c.Eventually(func() int {
		c.views.mu.Lock()
		defer c.views.mu.Unlock()
		return len(c.views.of) + c.views.busy
	}).WithTimeout(conformance.Timeout).Should(BeZero())
}

// hasTerminalConnection reports whether there is a connection to the terminal.
func (c *cluster) hasTerminalConnection() bool {
	_, is := c.look(c.uid, c.pod(1)).activity()
	return is
}
