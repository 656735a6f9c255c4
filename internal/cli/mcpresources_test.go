// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestMCP_NotifiesSubscribersOfChanges(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(), shell())
	c := newToolClient(t, f, mcpFlags{})
	const uri = "berth://default/devserver/web"
	g.Expect(c.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri})).To(Succeed())
	server := readWeb(g, f)
	server.Status.RestartCount++
	g.Eventually(func(g Gomega) { // until the watch has started
		g.Expect(f.api.Status().Update(t.Context(), server)).To(Succeed())
		g.Expect(c.updated).To(Receive(Equal(uri)))
	}, timeout).Should(Succeed())

	g.Expect(c.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri})).To(Succeed())
	g.Eventually(func(g Gomega) { g.Consistently(c.updated, 100*time.Millisecond).ShouldNot(Receive()) }, timeout).Should(Succeed())
	server = readWeb(g, f)
	server.Status.RestartCount++
	g.Expect(f.api.Status().Update(t.Context(), server)).To(Succeed())
	g.Consistently(c.updated, 300*time.Millisecond).ShouldNot(Receive())
}

func TestMCP_NotifiesSubscribersOfWhatWaits(t *testing.T) {
	g := NewWithT(t)
	agent := asking("agent", metav1.ConditionFalse, time.Hour)
	agent.Spec.Session = "mine"
	foreign := asking("foreign", metav1.ConditionTrue, time.Hour)
	f := newFixture(agent, foreign)
	c := newToolClient(t, f, mcpFlags{session: "mine", toolsets: []string{toolsetRun}})
	const uri = "berth://default/waiting"
	read := func() []waiter {
		result, err := c.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		g.Expect(err).NotTo(HaveOccurred())
		var waiters []waiter
		g.Expect(json.Unmarshal([]byte(result.Contents[0].Text), &waiters)).To(Succeed())
		return waiters
	}
	g.Expect(c.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri})).To(Succeed())
	g.Eventually(c.updated, timeout).Should(Receive(Equal(uri)), "the state at the start")
	g.Expect(read()).To(BeEmpty(), "the other Instance belongs to another session")
	agent.Status.Conditions[0].Status = metav1.ConditionTrue
	g.Expect(f.api.Status().Update(t.Context(), agent)).To(Succeed())
	g.Eventually(c.updated, timeout).Should(Receive(Equal(uri)))
	g.Expect(read()).To(ConsistOf(HaveField("Name", "instance/agent")))
	g.Consistently(c.updated, 2*notifyEvery).ShouldNot(Receive(), "without a change")
}

func TestSubscriptions_AreLimited(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	to, err := f.app.connect(&connectionFlags{})
	g.Expect(err).NotTo(HaveOccurred())
	subscribed := newSubscriptions(t.Context(), &toolContext{app: f.app, to: to})
	subscribed.notify = func(context.Context, string) {}
	defer subscribed.close()
	subscribe := func(uri string) error {
		return subscribed.subscribe(t.Context(), &mcp.SubscribeRequest{Params: &mcp.SubscribeParams{URI: uri}})
	}
	for _, missing := range []string{"berth://default/devserver/none", "berth://other/instance/shell", "berth://default/devserver/none/log"} {
		g.Expect(subscribe(missing)).NotTo(Succeed())
	}
	for i := range maxSubscriptions + 1 {
		server := web(func(server *v1alpha1.DevServer) { server.Name = fmt.Sprintf("web-%d", i) })
		g.Expect(f.api.Create(t.Context(), server)).To(Succeed())
		uri := "berth://default/devserver/" + server.Name
		if i == maxSubscriptions {
			g.Expect(subscribe(uri)).To(MatchError(ContainSubstring("at most 50 resources")))
			break
		}
		g.Expect(subscribe(uri)).To(Succeed())
	}
	g.Expect(subscribe("berth://default/devserver/web-0")).To(Succeed(), "another client of the same resource")
}
