// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
)

// keepsLog is a backend with one log. Its output began at the offset base, and its first bytes were removed.
type keepsLog struct {
	runtime.NoRuntime
	runtime.NoLogs
	text  string
	base  int64
	first int64 // number of removed bytes
	err   error
	opens int
}

func (k *keepsLog) Capabilities() runtime.Capabilities { return runtime.Capabilities{Logs: k} }

func (k *keepsLog) OpenLog(context.Context, types.UID) (runtime.Log, error) {
	k.opens++
	if k.err != nil {
		return nil, k.err
	}
	return keptLog{bytes.NewReader([]byte(k.text)), k.base, k.first}, nil
}

type keptLog struct {
	text        *bytes.Reader
	base, first int64
}

func (l keptLog) Bounds() (int64, int64, error)              { return l.base + l.first, l.base + l.text.Size(), nil }
func (l keptLog) ReadAt(p []byte, offset int64) (int, error) { return l.text.ReadAt(p, offset-l.base) }
func (keptLog) Wait(context.Context, int64) error            { return nil }
func (keptLog) Close() error                                 { return nil }
func failure(number int64) facts.Incarnation {
	return facts.Incarnation{Number: number, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Code: 3}}
}

func TestReadLogTail_OnlyOfNewFailures(t *testing.T) {
	secret := v1alpha1.EnvVar{Name: "KEY", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "s", Key: "k"}}}
	for name, test := range map[string]struct {
		found    facts.Incarnation
		template string
		change   func(*v1alpha1.Instance, *keepsLog)
		want     string
	}{
		"failure":          {found: failure(3), want: "starting\nconfig missing"},
		"signal":           {found: facts.Incarnation{Number: 3, Exit: &facts.Exit{Known: true, Signal: "SIGKILL"}}, want: "starting\nconfig missing"},
		"success":          {found: facts.Incarnation{Number: 3, Exit: &facts.Exit{Known: true}}},
		"running":          {found: facts.Incarnation{Number: 3, Phase: facts.Running}},
		"unknown":          {found: facts.Incarnation{Number: 3, Exit: &facts.Exit{}}},
		"old":              {found: failure(2)},
		"already recorded": {found: failure(3), change: func(i *v1alpha1.Instance, _ *keepsLog) { i.Status.LastExit = &v1alpha1.ProcessExit{Incarnation: 3} }},
		"not permitted":    {found: failure(3), change: func(i *v1alpha1.Instance, _ *keepsLog) { i.Spec.Process.LogTail = v1alpha1.LogTailNone }},
		"with a Secret":    {found: failure(3), change: func(i *v1alpha1.Instance, _ *keepsLog) { i.Spec.Process.Env = []v1alpha1.EnvVar{secret} }},
		"with the keys of a Secret": {found: failure(3), change: func(i *v1alpha1.Instance, _ *keepsLog) {
			i.Spec.Process.EnvFrom = []v1alpha1.EnvFromSource{{SecretRef: &v1alpha1.EnvFromRef{Name: "s"}}}
		}},
		"permitted with a Secret": {found: failure(3), want: "starting\nconfig missing", change: func(i *v1alpha1.Instance, _ *keepsLog) {
			i.Spec.Process.Env, i.Spec.Process.LogTail = []v1alpha1.EnvVar{secret}, v1alpha1.LogTailOnFailure
		}},
		"with a Secret in the template of the Pod":             {found: failure(3), template: `{"spec": {"containers": [{"name": "main", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}}`},
		"with the keys of a Secret in the template of the Pod": {found: failure(3), template: `{"spec": {"containers": [{"name": "main", "envFrom": [{"secretRef": {"name": "s"}}]}]}}`},
		"with another template of the Pod": {
			found: failure(3), want: "starting\nconfig missing",
			template: `{"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}}`,
		},
		"rotated": {found: failure(3), want: "config missing", change: func(_ *v1alpha1.Instance, k *keepsLog) { k.first = 3 }},
		"in a Pod": {found: failure(3), want: "starting\nconfig missing", change: func(_ *v1alpha1.Instance, k *keepsLog) {
			k.base = 3 * runtime.IncarnationLog
		}},
		"in a Pod, shortened": {found: failure(3), want: "config missing", change: func(_ *v1alpha1.Instance, k *keepsLog) {
			k.base, k.first = 3*runtime.IncarnationLog, 3
		}},
		"long": {found: failure(3), want: "last", change: func(_ *v1alpha1.Instance, k *keepsLog) {
			k.text = "first\n" + strings.Repeat("\x1b[0m\n", logTailRead/5+1) + "last\n"
		}},
		"no output": {found: failure(3), change: func(_ *v1alpha1.Instance, k *keepsLog) { k.err = runtime.ErrNotFound }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			instance, backend := &v1alpha1.Instance{}, &keepsLog{text: "starting\n\x1b[31mconfig missing\x1b[0m\n"}
			instance.Status.Incarnation = 3
			if test.change != nil {
				test.change(instance, backend)
			}
			v := &scope{object: instance, runtime: backend}
			if test.template != "" {
				v.traits.Template = &apiruntime.RawExtension{Raw: []byte(test.template)}
			}
			shared := test.found.Exit
			found := []facts.Incarnation{test.found}
			v.readLogTail(t.Context(), found)
			if test.want == "" && backend.err == nil {
				g.Expect(backend.opens).To(BeZero())
			}
			if exit := found[0].Exit; exit != nil {
				g.Expect(exit.LogTail).To(Equal(test.want))
				g.Expect(len(exit.LogTail)).To(BeNumerically("<=", printable.MaxTail))
				g.Expect(shared.LogTail).To(BeEmpty(), "the backend may share the exit")
			}
			before := []facts.Incarnation{{Number: test.found.Number + 1, Phase: facts.Running}}
			if test.found.Exit != nil {
				before[0].Before = &facts.Ended{Number: test.found.Number, Exit: *shared}
				v.readLogTail(t.Context(), before)
				g.Expect(before[0].Before.Exit.LogTail).To(Equal(test.want))
			}
		})
	}
}
