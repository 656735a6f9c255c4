// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestDesired_CombinesDefaultsAndSpec(t *testing.T) {
	defaults := lifecycle.Desired{
		UID: "u", Generation: 3, State: lifecycle.DesiredRunning, SpecHash: "h", Logs: "berth logs instance/x -n team", Restart: "berth restart instance/x -n team",
		RestartPolicy: v1alpha1.RestartAlways, UpdatePolicy: v1alpha1.UpdateRecreate, Grace: 10 * time.Second,
		Backoff: lifecycle.Backoff{Initial: time.Second, Max: time.Minute, ResetAfter: time.Minute},
		Breaker: lifecycle.Breaker{Threshold: 5, Window: 3 * time.Minute, CoolDown: 10 * time.Minute},
	}
	changed := defaults
	changed.RestartToken, changed.ResetToken = "t", "r"
	changed.RestartPolicy, changed.UpdatePolicy, changed.Grace = v1alpha1.RestartNever, v1alpha1.UpdateOnRestart, 0
	changed.Backoff = lifecycle.Backoff{Initial: 0, Max: 2 * time.Second, ResetAfter: 3 * time.Second}
	changed.Breaker = lifecycle.Breaker{Threshold: 2, Window: 4 * time.Second}

	tests := map[string]struct {
		spec v1alpha1.ProcessSpec
		want lifecycle.Desired
	}{
		"defaults": {want: defaults},
		"from the spec, including zeros": {
			spec: v1alpha1.ProcessSpec{
				RestartToken: "t", ResetToken: "r", RestartPolicy: v1alpha1.RestartNever, UpdatePolicy: v1alpha1.UpdateOnRestart,
				Process: v1alpha1.ProcessTemplate{Stop: v1alpha1.StopPolicy{GracePeriodSeconds: ptr.To[int32](0)}},
				Backoff: v1alpha1.BackoffPolicy{InitialSeconds: ptr.To[int32](0), MaxSeconds: ptr.To[int32](2), ResetAfterSeconds: ptr.To[int32](3)},
				Breaker: v1alpha1.BreakerPolicy{FailureThreshold: ptr.To[int32](2), WindowSeconds: ptr.To[int32](4), CoolDownSeconds: ptr.To[int32](0)},
			},
			want: changed,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "x", UID: "u", Generation: 3}, Spec: v1alpha1.InstanceSpec{ProcessSpec: tc.spec}}
			v := &scope{object: object, want: lifecycle.DesiredRunning, hash: "h", runtime: runtime.NoRuntime{}}
			if diff := cmp.Diff(tc.want, v.desired(&testKind{})); diff != "" {
				t.Errorf("desired (-want +got):\n%s", diff)
			}
		})
	}
}

// sleepyKind is a kind whose objects should always be asleep.
type sleepyKind struct{ Kind }

func (sleepyKind) Asleep(context.Context, Object, time.Time) bool { return true }

func TestDesiredState_PrefersDeleteOverStopOverSleep(t *testing.T) {
	g := NewWithT(t)
	object := &v1alpha1.Instance{}
	want := func(kind Kind) lifecycle.DesiredState {
		return (&Reconciler{Kind: kind}).want(t.Context(), &scope{object: object})
	}
	g.Expect(want(&testKind{})).To(Equal(lifecycle.DesiredRunning))
	g.Expect(want(sleepyKind{})).To(Equal(lifecycle.DesiredAsleep))
	object.Spec.State = v1alpha1.StateStopped
	g.Expect(want(sleepyKind{})).To(Equal(lifecycle.DesiredStopped))
	object.DeletionTimestamp = ptr.To(metav1.Now())
	g.Expect(want(sleepyKind{})).To(Equal(lifecycle.DesiredDeleted))
}

func TestSpecHash_ChangesOnlyWithProgram(t *testing.T) {
	g := NewWithT(t)
	hash := func(change func(*v1alpha1.ProcessSpec), words ...string) string {
		spec := &v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{
			Command: []string{"a", "b"}, WorkingDir: "/w", Env: []v1alpha1.EnvVar{{Name: "E", Value: "v"}},
		}}
		if change != nil {
			change(spec)
		}
		sum, _, err := specHash(spec, words)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(sum).To(HaveLen(64), "the maximum length of status.specHash")
		return sum
	}
	same := hash(nil)
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.RestartToken, s.ResetToken, s.State = "x", "y", v1alpha1.StateStopped })).To(Equal(same))
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.Stop.Signal = "SIGINT" })).To(Equal(same), "the stop signal does not concern the running process")
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"a b"} })).NotTo(Equal(same))
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.Command = nil })).NotTo(Equal(same), "the entrypoint of the image is another program")
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.WorkingDir = "/x" })).NotTo(Equal(same))
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.Env[0].Value = "w" })).NotTo(Equal(same))
	g.Expect(hash(nil, "port=1")).NotTo(Equal(same))
	g.Expect(hash(func(s *v1alpha1.ProcessSpec) { s.Process.ResumeCommand = []string{"a", "--resume"} })).To(Equal(same), "resumeCommand does not concern a process that was started with command")
}

func TestSpecHash_CoversResumeCommandSeparately(t *testing.T) {
	g := NewWithT(t)
	hash := func(command ...string) string {
		_, sum, err := specHash(&v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"a"}, ResumeCommand: command}}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return sum
	}
	g.Expect(hash()).To(BeEmpty())
	g.Expect(hash("a", "b")).To(And(HaveLen(64), Equal(hash("a", "b")), Not(Equal(hash("a b"))), Not(Equal(hash("a")))))
}
