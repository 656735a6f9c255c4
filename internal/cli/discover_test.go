// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// agentsDiscovery returns a discovery that has found three sessions.
func agentsDiscovery() *v1alpha1.InstanceDiscovery {
	d := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agents"}}
	d.Status.Totals = v1alpha1.DiscoveryTotals{Found: 3, Created: 1, Known: 1, Skipped: 1}
	d.Status.Found = []v1alpha1.DiscoveredInstance{
		{
			Source: "tmux", Name: "work", ID: "$1", Outcome: v1alpha1.DiscoveryCreated,
			InstanceRef: &v1alpha1.NamespacedReference{Namespace: "default", Name: "work-1"},
		},
		{
			Source: "tmux", Name: "shared", ID: "$3", Outcome: v1alpha1.DiscoveryKnown, Reason: v1alpha1.ReasonAlreadyClaimed,
			InstanceRef: &v1alpha1.NamespacedReference{Namespace: "team", Name: "agent"},
		},
		{Source: "tmux", Name: "own\x1b[31m", ID: "$2", Outcome: v1alpha1.DiscoverySkipped, Reason: v1alpha1.ReasonBerthsOwn, Message: "Started by Berth."},
	}
	d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDiscovered}}
	return d
}

// fulfillRefreshes fulfills refresh requests immediately, as a manager would.
func fulfillRefreshes(f *fixture, change func(*v1alpha1.InstanceDiscovery)) {
	f.api = interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if d, is := o.(*v1alpha1.InstanceDiscovery); is && err == nil {
				d.Status.ObservedRefreshToken = d.Spec.RefreshToken
				change(d)
			}
			return err
		},
	})
}

func TestDiscover_PrintsFoundSessions(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(agentsDiscovery())
	fulfillRefreshes(f, func(*v1alpha1.InstanceDiscovery) {})
	g.Expect(f.run(t.Context(), "discover")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(MatchRegexp(`(?m)^SOURCE +NAME +ID +OUTCOME +INSTANCE +WHY$`))
	g.Expect(f.out.String()).To(MatchRegexp(`(?m)^tmux +work +\$1 +Created +work-1$`))
	g.Expect(f.out.String()).To(MatchRegexp(`(?m)^tmux +shared +\$3 +Known +team/agent +AlreadyClaimed$`))
	g.Expect(f.out.String()).To(MatchRegexp(`(?m)^tmux +own +\$2 +Skipped +Started by Berth\.$`))
	d := &v1alpha1.InstanceDiscovery{}
	g.Expect(f.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "agents"}, d)).To(Succeed())
	g.Expect(d.Spec.RefreshToken).NotTo(BeEmpty())
}

func TestDiscover_ReportsFailures(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		code int
		err  string
	}{
		"no such discovery": {[]string{"discover", "nope"}, exitMissing, `instancediscovery/nope does not exist in namespace "default"`},
		"no manager":        {[]string{"discover", "--timeout", "300ms"}, exitFailure, "did not search within 300ms: is a manager running?"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(agentsDiscovery())
			g.Expect(f.run(t.Context(), test.args...)).To(Equal(test.code))
			g.Expect(f.err.String()).To(ContainSubstring(test.err))
		})
	}
	g := NewWithT(t)
	f := newFixture(agentsDiscovery())
	fulfillRefreshes(f, func(d *v1alpha1.InstanceDiscovery) {
		d.Status.Conditions[0] = metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRuntimeUnavailable, Message: "source tmux: no tmux",
		}
	})
	g.Expect(f.run(t.Context(), "discover", "agents")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("instancediscovery/agents: RuntimeUnavailable: source tmux: no tmux"))
	g.Expect(f.out.String()).To(ContainSubstring("work-1"), "the known objects are still shown")
}

func TestDiscover_ReportsMissingDiscovery(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	g.Expect(f.run(t.Context(), "discover")).To(Equal(0))
	g.Expect(f.err.String()).To(ContainSubstring("no InstanceDiscovery in namespace default"))
}

func TestStatus_ShowsDiscoveryTotals(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(agentsDiscovery())
	g.Expect(f.run(t.Context(), "status")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(ContainSubstring("instancediscovery/agents   True    Discovered   3 found, 1 created, 1 known, 1 skipped"))
}
