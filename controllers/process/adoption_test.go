// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestAdoptable_ComparesNames(t *testing.T) {
	g := NewWithT(t)
	id := strings.Repeat("a1", 32)
	for _, c := range []struct {
		entry, what string
		permits     bool
	}{
		{"*", AdoptsSession("default", "work"), true},
		{"*", AdoptsContainer(id), true},
		{"tmux:default/work", AdoptsSession("default", "work"), true},
		{"tmux:default/work", AdoptsSession("default", "work2"), false},
		{"tmux:default/*", AdoptsSession("default", "a/b"), true},
		{"tmux:default/*", AdoptsSession("default2", "work"), false},
		{"tmux:*", AdoptsContainer("db"), false},
		{"docker:agent-*", AdoptsContainer("agent-1"), true},
		{"docker:agent-*", AdoptsContainer("production-db"), false},
		{"docker:a*", AdoptsContainer(id), false},
		{"docker:a*", AdoptsContainer(id[:12]), false},
		{"docker:a*", AdoptsContainer(id[:11]), true}, // the backend accepts no such beginning of an ID
		{"docker:" + id, AdoptsContainer(id), true},
		{"docker:*", AdoptsContainer(id), true},
		{"docker", AdoptsContainer("docker"), false},
	} {
		g.Expect(Adoptable{"tmux:other/x", c.entry}.Permits(c.what)).To(Equal(c.permits), "%s by %s", c.what, c.entry)
	}
	g.Expect(Adoptable{}.Permits(AdoptsContainer("db"))).To(BeFalse())
	for entry, kinds := range map[string][2]bool{"*": {true, true}, "tmux:a/b": {true, false}, "docker:*": {false, true}, "t*": {true, false}, "x": {}} {
		g.Expect([2]bool{Adoptable{entry}.PermitsAny(v1alpha1.RuntimeTmux), Adoptable{entry}.PermitsAny(v1alpha1.RuntimeDocker)}).To(Equal(kinds), entry)
	}
}

// The manager starts an object that adopts something only if the ConfigMap permits it, whether or not the admission policies are installed.
func TestPermission_AdoptionNeedsEntry(t *testing.T) {
	for _, c := range []struct {
		name      string
		data      map[string]string
		permitted bool
	}{
		{"no parameters", nil, false},
		{"another name", map[string]string{"adoption": "docker:db"}, false},
		{"named", map[string]string{"adoption": "# agents\n docker:production-* \n"}, true},
		{"the namespace", map[string]string{"adoption.default": "docker:production-db"}, true},
		{"not the namespace", map[string]string{"adoption": "*", "adoption.default": ""}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newGuardedFixture(t)
			b.permit("Host")
			b.kind.adopts = AdoptsContainer("production-db")
			b.Expect(b.api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: PolicyConfigMap}, Data: c.data})).To(Succeed())
			b.reconcile()
			if c.permitted {
				b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
				return
			}
			stalled := b.condition(v1alpha1.ConditionStalled)
			b.Expect(stalled.Status).To(Equal(metav1.ConditionTrue))
			b.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonAdoptionForbidden))
			b.Expect(stalled.Message).To(And(ContainSubstring("The adoption of docker:production-db is not permitted in namespace default"),
				ContainSubstring("adoption.default in ConfigMap berth-system/berth-policy")))
			b.Expect(b.rt.Live(testUID)).To(BeEmpty())
			forbidden, err := b.r.forbiddenNow(t.Context(), b.object())
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(forbidden).To(BeTrue(), "the check without the cache")
		})
	}
}
