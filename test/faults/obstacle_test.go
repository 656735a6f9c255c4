// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// obstacle is a cause that lets the next start of a running process fail. impose makes the start fail, and remove makes it succeed again.
type obstacle struct {
	reason         string
	impose, remove func(*restWorld)
	only           func(restSubject) bool
}

var obstacles = []obstacle{
	{
		reason: v1alpha1.ReasonInvalidEnvironment, only: isNotRun,
		impose: func(w *restWorld) { w.Expect(w.api.Delete(w.ctx, secret())).To(Succeed()) },
		remove: func(w *restWorld) { w.Expect(w.api.Create(w.ctx, secret())).To(Succeed()) },
	},
	{
		reason: v1alpha1.ReasonWorkingDirMissing, only: func(s restSubject) bool { return isNotRun(s) && s.runtime != v1alpha1.RuntimePod }, // no backend knows the files of an image
		impose: func(w *restWorld) {
			w.rt.Program("serve", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing, Message: "the directory does not exist"}})
		},
		remove: func(w *restWorld) { w.rt.Program("serve", fake.Program{}) },
	},
}

func secret() *corev1.Secret {
	s := &corev1.Secret{}
	s.Namespace, s.Name, s.Data = key.Namespace, "token", map[string][]byte{"key": []byte("value")}
	return s
}

func usesSecret(o process.Object) {
	o.GetProcessSpec().Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "token", Key: "key"}}}}
}

// TestRestart_KeepsProcessThatCouldNotStartAgain requests a restart of every kind, in every runtime, while a cause that can be checked prevents the next start. The
// process keeps running, a condition names the cause, and the restart happens once the cause is gone.
func TestRestart_KeepsProcessThatCouldNotStartAgain(t *testing.T) {
	requests := map[string]func(process.Object){
		"restart token": func(o process.Object) { o.GetProcessSpec().RestartToken = "again" },
		"new spec":      func(o process.Object) { o.GetProcessSpec().Process.Command = []string{"serve", "--more"} },
	}
	for _, subject := range restSubjects {
		for _, obstacle := range obstacles {
			for name, request := range requests {
				if !obstacle.only(subject) {
					continue
				}
				t.Run(subject.kind+" "+string(subject.runtime)+" "+obstacle.reason+" "+name, func(t *testing.T) {
					t.Parallel()
					w := newRestWorld(t, subject, ending{spec: usesSecret})
					w.Expect(w.api.Create(w.ctx, secret())).To(Succeed())
					w.start(1)
					obstacle.impose(w)
					w.change(request)
					w.expectWaits(obstacle.reason)
					obstacle.remove(w)
					w.start(2)
					w.reconcile()
					w.Expect(meta.FindStatusCondition(w.read(key).GetProcessStatus().Conditions, v1alpha1.ConditionDriftDetected)).To(BeNil())
				})
			}
		}
	}
}

// expectWaits checks that the running process is kept, that DriftDetected has the reason, and that further reconciles, also by a new manager, write nothing.
func (w *restWorld) expectWaits(reason string) {
	for range 3 {
		w.reconcile()
	}
	writes, acts := w.writes, w.acts
	for _, prepare := range []func(){func() {}, func() { w.clock.Step(time.Second) }, w.restartManager} {
		prepare()
		w.Expect(w.reconcile().RequeueAfter).To(BeNumerically("~", 30*time.Second, 30*time.Second-time.Millisecond), "nothing reports that the cause is gone")
		object := w.read(key)
		drift := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionDriftDetected)
		w.Expect(w.rt.Live(uid)).To(Equal([]int64{1}), "%s", describe(object))
		w.Expect(drift).NotTo(BeNil(), "%s", describe(object))
		w.Expect(drift.Reason).To(Equal(reason))
		w.Expect(drift.ObservedGeneration).To(Equal(object.GetGeneration()))
		w.Expect(object.GetProcessStatus().Process).NotTo(BeNil())
	}
	if w.subject.kind != "DevServer" { // a probe can report its first result at any time
		w.Expect(w.writes).To(Equal(writes))
	}
	w.Expect(w.acts).To(Equal(acts))
}
