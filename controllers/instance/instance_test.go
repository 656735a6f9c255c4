// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestPrepareGivesATerminal(t *testing.T) {
	tests := map[string]struct {
		spec v1alpha1.TerminalSpec
		want runtime.Terminal
	}{
		"defaults": {want: runtime.Terminal{Columns: 120, Rows: 40}},
		"as asked": {
			spec: v1alpha1.TerminalSpec{Columns: ptr.To[int32](80), Rows: ptr.To[int32](24)},
			want: runtime.Terminal{Columns: 80, Rows: 24},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			plan := process.Plan{}
			instance := &v1alpha1.Instance{Spec: v1alpha1.InstanceSpec{Terminal: tc.spec}}
			if err := (Kind{}).Prepare(t.Context(), instance, nil, &plan); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, plan.Process.Terminal); diff != "" {
				t.Errorf("terminal (-want +got):\n%s", diff)
			}
			if len(plan.Fingerprint) > 0 || plan.Probed {
				t.Errorf("the size of a terminal must not restart a session: %+v", plan)
			}
		})
	}
}

func TestAttachCommand(t *testing.T) {
	for namespace, want := range map[string]string{
		"default": "berth attach instance/claude",
		"work":    "berth attach instance/claude -n work",
	} {
		instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claude"}}
		if _, err := (Kind{}).Look(t.Context(), instance, runtime.Incarnation{}, &lifecycle.Observed{}); err != nil {
			t.Fatal(err)
		}
		if instance.Status.AttachCommand != want {
			t.Errorf("in %s: got %q, want %q", namespace, instance.Status.AttachCommand, want)
		}
	}
}
