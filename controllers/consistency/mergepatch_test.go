// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package consistency

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func newServer() *v1alpha1.DevServer {
	second := metav1.NewTime(time.Unix(1700000000, 0))
	o := &v1alpha1.DevServer{}
	o.Name, o.ResourceVersion = "web", "7"
	o.Spec.Process.Command = []string{"npm"}
	o.Status.ObservedGeneration, o.Status.URL, o.Status.ObservedPorts = 1, "http://localhost:3000/?a=1&b=<c>", []int32{3000, 3001}
	o.Status.Breaker = &v1alpha1.BreakerStatus{State: v1alpha1.BreakerOpen, OpenTime: ptr.To(metav1.NewMicroTime(second.Time))}
	o.Status.LastExit = &v1alpha1.ProcessExit{Incarnation: 1, ExitCode: ptr.To[int32](0)}
	o.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: metav1.ConditionTrue, LastTransitionTime: second, Reason: "Here"},
		{Type: "Stalled", Status: metav1.ConditionFalse, LastTransitionTime: second, Reason: "Here"},
	}
	return o
}

// TestStatusPatch_EqualsPatchOfLibrary checks that the patch equals the one that controller-runtime creates from two whole objects.
func TestStatusPatch_EqualsPatchOfLibrary(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.DevServerStatus){
		"a field":                      func(s *v1alpha1.DevServerStatus) { s.URL = "http://localhost:4000/" },
		"a removed field":              func(s *v1alpha1.DevServerStatus) { s.URL = "" },
		"an added field":               func(s *v1alpha1.DevServerStatus) { s.Incarnation = 2 },
		"a list":                       func(s *v1alpha1.DevServerStatus) { s.ObservedPorts = s.ObservedPorts[:1] },
		"a removed list":               func(s *v1alpha1.DevServerStatus) { s.ObservedPorts = nil },
		"one condition":                func(s *v1alpha1.DevServerStatus) { s.Conditions[1].Message = "They said \"no\"." },
		"an added object":              func(s *v1alpha1.DevServerStatus) { s.Process = &v1alpha1.ProcessReference{PID: 12, Node: "here"} },
		"a removed object":             func(s *v1alpha1.DevServerStatus) { s.LastExit = nil },
		"a field of an object":         func(s *v1alpha1.DevServerStatus) { s.LastExit.Incarnation = 2 },
		"a removed field of an object": func(s *v1alpha1.DevServerStatus) { s.Breaker.OpenTime = nil },
		"an added field of an object":  func(s *v1alpha1.DevServerStatus) { s.LastExit.Signal = "KILL" },
		"several fields at once": func(s *v1alpha1.DevServerStatus) {
			s.Breaker.State, s.LastExit.ExitCode, s.Port = v1alpha1.BreakerClosed, nil, 3
		},
		"all": func(s *v1alpha1.DevServerStatus) { *s = v1alpha1.DevServerStatus{} },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			before, after := newServer(), newServer()
			change(&after.Status)
			patch, err := statusPatch(before, after)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(patch).NotTo(BeNil())
			g.Expect(patch.Type()).To(Equal(types.MergePatchType))
			ours, err := patch.Data(after)
			g.Expect(err).NotTo(HaveOccurred())
			theirs, err := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}).Data(after)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ours).To(MatchJSON(theirs))
		})
	}
}

func TestStatusPatch_IsNilWithoutChange(t *testing.T) {
	g := NewWithT(t)
	before, after := newServer(), newServer()
	after.Spec.Process.Command = []string{"yarn"} // a resolved value, which must not be stored
	after.Status.Conditions[0].LastTransitionTime.Time = after.Status.Conditions[0].LastTransitionTime.Add(time.Millisecond)
	g.Expect(statusPatch(before, after)).To(BeNil(), "the stored status does not change")
}

func TestStatusPatch_RefusesObjectsThatCannotBePatched(t *testing.T) {
	g := NewWithT(t)
	before := newServer()
	before.ResourceVersion = ""
	_, err := statusPatch(before, newServer())
	g.Expect(err).To(MatchError(ContainSubstring("never stored")))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	_, err = statusPatch(secret, secret)
	g.Expect(err).To(MatchError(ContainSubstring("no status")))
}
