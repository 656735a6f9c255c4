// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// victim is what adversaries aim at. It may suffer, as it has the same user; Berth must still see and end it.
const victim = "infinity-victim"

// TestHostileProcesses runs programs that misbehave, all at once, under a manager of an ordinary user. A well-behaved object beside them keeps its process,
// each of them ends with its object, and nothing of them is left.
func TestHostileProcesses(t *testing.T) {
	user := uint32(0)
	if os.Getuid() == 0 {
		user = ordinary
	}
	w := newWorld(t, user)
	calm := w.newCalm()
	quiet := calm.measure(10)
	before := w.steady(calm.object)
	state := filepath.Join(w.dir, "state")
	behaviors := map[string][]string{
		"bomb": {"bomb"}, "children": {"children", fmt.Sprint(number(t, "CHILDREN", 5000))}, "flood": {"flood"}, "sockets": {"sockets", "4000"},
		"signals": {"signals"}, "vandal": {"vandal", state}, "ptrace": {"ptrace", victim}, "impostor": {"impostor", victim},
	}
	objects := []client.Object{w.instance("victim", filepath.Join(w.dir, "adversary"), "wait", victim)}
	for name, arguments := range behaviors {
		objects = append(objects, w.instance(name, append([]string{filepath.Join(w.dir, "adversary")}, arguments...)...))
	}
	for _, object := range objects {
		w.must(w.api.Create(t.Context(), object), "create an adversary")
	}
	w.observe(objects, before, time.Duration(number(t, "ADVERSARY_SECONDS", 20))*time.Second)
	for _, object := range objects {
		w.must(client.IgnoreNotFound(w.api.Delete(t.Context(), object)), "delete an adversary")
	}
	w.awaitGone(objects)
	if after := w.steady(calm.object); after != before {
		t.Errorf("the well-behaved object has another process: %s, not %s", after, before)
	}
	busy := calm.measure(10)
	t.Logf("well-behaved object: restart p50 %v before, %v after", percentile(quiet, 0.5), percentile(busy, 0.5))
	if left := w.processes("adversary"); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if peak := w.peakMemory(); peak > mostMemory {
		t.Errorf("the manager took %d MiB", peak>>20)
	}
}

func (w *world) instance(name string, command ...string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: hostileNamespace, Name: name}}
	instance.Spec.Process.Command = command
	instance.Spec.RestartPolicy = v1alpha1.RestartNever
	grace := int32(2)
	instance.Spec.Process.Stop.GracePeriodSeconds = &grace
	return instance
}

// steady waits until the object is Ready and returns what identifies its process.
func (w *world) steady(object *v1alpha1.Instance) string {
	w.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
		w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(object), object), "read the well-behaved object")
		if process := object.Status.Process; process != nil && meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Sprintf("incarnation %d, process %d", process.Incarnation, process.PID)
		}
	}
	w.Fatalf("the well-behaved object is not ready: %+v", object.Status)
	return ""
}

// observe sees for some time that the manager reports what becomes of the adversaries, and that the well-behaved object keeps its process.
func (w *world) observe(objects []client.Object, before string, span time.Duration) {
	w.Helper()
	calm := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: calmNamespace, Name: "calm"}}
	for begun := time.Now(); time.Since(begun) < span; time.Sleep(500 * time.Millisecond) {
		if now := w.steady(calm); now != before {
			w.Fatalf("the well-behaved object has another process: %s, not %s", now, before)
		}
	}
	for _, object := range objects {
		w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(object), object), "read an adversary")
		instance := object.(*v1alpha1.Instance)
		ready := meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			w.Errorf("%s: the manager reports nothing after %v", instance.Name, span)
			continue
		}
		w.Logf("%-9s Ready=%s %s %s", instance.Name, ready.Status, ready.Reason, ready.Message)
	}
}

// awaitGone waits until all objects are gone.
func (w *world) awaitGone(objects []client.Object) {
	w.Helper()
	begun := time.Now()
	for _, object := range objects {
		for !apierrors.IsNotFound(w.api.Get(w.Context(), client.ObjectKeyFromObject(object), object)) {
			if time.Since(begun) > mostDeletion {
				text := fmt.Sprintf("%+v", object.(*v1alpha1.Instance).Status)
				w.Errorf("%s was not gone %v after its deletion: %s", object.GetName(), mostDeletion, text)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	w.Logf("all adversaries were gone %v after their deletion", time.Since(begun).Round(time.Millisecond))
}

// processes returns the processes of the user whose executable has that name.
func (w *world) processes(executable string) (found []string) {
	w.Helper()
	// What was killed is gone a moment later.
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
	defer cancel()
	for {
		found = nil
		links, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && target == filepath.Join(w.dir, executable) {
				line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
				found = append(found, filepath.Base(filepath.Dir(link))+" "+strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
		if len(found) == 0 || ctx.Err() != nil {
			return found
		}
		time.Sleep(50 * time.Millisecond)
	}
}
