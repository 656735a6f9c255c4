// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// victim is the name of the process that is attacked by two adversaries, "ptrace" and "impostor". The adversaries can harm this process, because it has the
// same user, but Berth must still be able to observe and stop the process.
const victim = "infinity-victim"

// TestHostileProcesses_DoNotAffectOtherObjects runs misbehaving programs in parallel under a manager that runs as an ordinary user. A well-behaved object must
// keep its process all the time. When the object of a misbehaving program is deleted, the program must end, and none of its processes may remain.
func TestHostileProcesses_DoNotAffectOtherObjects(t *testing.T) {
	user := uint32(0)
	if os.Getuid() == 0 {
		user = unprivilegedUID
	}
	w := newWorld(t, user)
	wellBehaved := w.newBystander()
	quiet, _ := wellBehaved.measure(10)
	before := w.waitUntilReady(wellBehaved.object)
	state := filepath.Join(w.dir, "state")
	behaviors := map[string][]string{
		"bomb": {"bomb"}, "children": {"children", fmt.Sprint(envInt(t, "CHILDREN", 5000))}, "flood": {"flood"}, "sockets": {"sockets", "4000"},
		"signals": {"signals", state}, "vandal": {"vandal", state}, "ptrace": {"ptrace", victim}, "impostor": {"impostor", victim},
	}
	objects := []client.Object{w.instance("victim", filepath.Join(w.dir, "adversary"), "wait", victim)}
	for name, arguments := range behaviors {
		objects = append(objects, w.instance(name, append([]string{filepath.Join(w.dir, "adversary")}, arguments...)...))
	}
	for _, object := range objects {
		w.must(w.api.Create(t.Context(), object), "create an adversary")
	}
	w.expectAttacksContained(objects, before, time.Duration(envInt(t, "ADVERSARY_SECONDS", 20))*time.Second)
	for _, object := range objects {
		w.must(client.IgnoreNotFound(w.api.Delete(t.Context(), object)), "delete an adversary")
	}
	w.waitUntilGone(objects)
	if after := w.waitUntilReady(wellBehaved.object); after != before {
		t.Errorf("the process of the well-behaved object changed: %s, not %s", after, before)
	}
	w.expectNoProcessesLeft(wellBehaved.object)
	busy, _ := wellBehaved.measure(10)
	t.Logf("well-behaved object: restart p50 %v before, %v after", percentile(quiet, 0.5), percentile(busy, 0.5))
	peak := w.peakMemory()
	t.Logf("manager: peak memory %d MiB", peak>>20)
	if peak > maxMemory {
		t.Errorf("the manager used %d MiB, more than %d", peak>>20, maxMemory>>20)
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

// waitUntilReady waits until the object is Ready, and returns a text that identifies its process.
func (w *world) waitUntilReady(object *v1alpha1.Instance) string {
	w.Helper()
	var err error // the last error; retry, because a read may fail on a busy machine
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
		if err = w.get(object); err != nil {
			continue
		}
		if process := object.Status.Process; process != nil && meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Sprintf("incarnation %d, process %d", process.Incarnation, process.PID)
		}
	}
	w.Fatalf("the well-behaved object is not ready: %+v (last read: %v)", object.Status, err)
	return ""
}

func (w *world) get(object client.Object) error {
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
	defer cancel()
	return w.api.Get(ctx, client.ObjectKeyFromObject(object), object)
}

// expectations contains, by the name of each object, what must be true after the attack. These checks show that each adversary carried out its attack, and
// that the manager noticed the attacks that it can notice. The field reason is the reason of the condition Ready, message is a part of its message, and
// output is a part of the output of the program. An empty field matches everything. The vandal has no expected output, because it removes its own output.
var expectations = map[string]struct {
	reason, message, output string
	orphaned                bool // whether the process must have outlived its shim
}{
	"bomb":     {output: "reached the limit"},
	"children": {},
	"flood":    {output: "x\x1b[31m"},
	"impostor": {output: "poses"},
	"ptrace":   {output: "tried to hold"},
	"signals":  {reason: v1alpha1.ReasonRunning, orphaned: true},
	"sockets":  {output: "listening on"},
	"vandal":   {reason: v1alpha1.ReasonUnknown, message: ".json"},
	"victim":   {},
}

// expectAttacksContained checks for the time span that the well-behaved object keeps its process, and then that each adversary meets its expectations.
func (w *world) expectAttacksContained(objects []client.Object, before string, span time.Duration) {
	w.Helper()
	wellBehaved := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: bystanderNamespace, Name: "bystander"}}
	for begun := time.Now(); time.Since(begun) < span; time.Sleep(500 * time.Millisecond) {
		if now := w.waitUntilReady(wellBehaved); now != before {
			w.Fatalf("the process of the well-behaved object changed: %s, not %s", now, before)
		}
	}
	for _, object := range objects {
		w.waitForExpectation(object.(*v1alpha1.Instance))
	}
}

// waitForExpectation waits until an adversary meets its expectations, for at most one minute.
func (w *world) waitForExpectation(instance *v1alpha1.Instance) {
	w.Helper()
	expected, known := expectations[instance.Name]
	if !known {
		w.Errorf("%s: no expectation", instance.Name)
	}
	var (
		ready  *metav1.Condition
		output string
		err    error
	)
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if err = w.get(instance); err != nil {
			continue
		}
		ready = meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionReady)
		output = w.output(instance)
		if ready != nil && (expected.reason == "" || ready.Reason == expected.reason) && strings.Contains(ready.Message, expected.message) &&
			strings.Contains(output, expected.output) && (!expected.orphaned || w.hasOutlivedShim(instance)) {
			w.Logf("%-9s Ready=%s %s %s", instance.Name, ready.Status, ready.Reason, ready.Message)
			return
		}
	}
	w.Errorf("%s: expected %+v, not condition Ready %+v with output %.200q (last read: %v)", instance.Name, expected, ready, output, err)
}

// hasOutlivedShim reports whether the process of an object has outlived its shim.
func (w *world) hasOutlivedShim(instance *v1alpha1.Instance) bool {
	w.Helper()
	all := w.processes()
	program := slices.IndexFunc(all, func(p process) bool {
		return instance.Status.Process != nil && int64(p.pid) == instance.Status.Process.PID
	})
	return program >= 0 && !slices.ContainsFunc(all, func(p process) bool { return p.pid == all[program].parent })
}

// output returns the last 64 KiB of the stored output of an object.
func (w *world) output(instance *v1alpha1.Instance) string {
	file, err := os.Open(filepath.Join(w.dir, "state", "host", "run", string(instance.UID), "out.log"))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-64<<10), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(file, 64<<10))
	return string(text)
}

// waitUntilGone waits until all objects are gone and logs how long each deletion took. If an object is not gone after maxDeletionTime, waitUntilGone fails the
// test and logs the existing processes.
func (w *world) waitUntilGone(objects []client.Object) {
	w.Helper()
	begun := time.Now()
	var err error
	for left := objects; len(left) > 0; time.Sleep(50 * time.Millisecond) {
		left = slices.DeleteFunc(slices.Clone(left), func(object client.Object) bool {
			err = w.get(object)
			if apierrors.IsNotFound(err) {
				w.Logf("%-9s gone %v after its deletion", object.GetName(), time.Since(begun).Round(time.Millisecond))
			}
			return apierrors.IsNotFound(err)
		})
		if time.Since(begun) < maxDeletionTime {
			continue
		}
		for _, object := range left {
			w.Errorf("%s was not gone %v after its deletion: %+v (last read: %v)", object.GetName(), maxDeletionTime, object.(*v1alpha1.Instance).Status, err)
		}
		if len(left) > 0 {
			w.Logf("processes:\n%s", w.describeProcesses(w.processes()))
		}
		return
	}
}

// expectNoProcessesLeft expects that processes returns only the manager, its warm shims, and the shim and the process of the well-behaved object.
func (w *world) expectNoProcessesLeft(wellBehaved *v1alpha1.Instance) {
	w.Helper()
	var left []process
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(50 * time.Millisecond) { // killed processes may need a moment to exit
		all := w.processes()
		shim := 0
		for _, p := range all {
			if int64(p.pid) == wellBehaved.Status.Process.PID {
				shim = p.parent
			}
		}
		if left = slices.DeleteFunc(all, func(p process) bool {
			return p.pid == w.manager.Process.Pid || p.pid == shim || int64(p.pid) == wellBehaved.Status.Process.PID || p.isWarmShim
		}); len(left) == 0 {
			return
		}
	}
	w.Errorf("processes remain:\n%s", w.describeProcesses(left))
}

type process struct {
	pid, parent int
	isWarmShim  bool // whether the process is a warm shim: a child of the manager that waits for the next start
	text        string
}

// processes returns the processes of the manager's user, including zombies. If the manager runs as the user of the test, it returns only the processes
// whose executable is in the directory of the manager.
func (w *world) processes() (found []process) {
	w.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "status")) // contains the user of the process; the owner of dir may be root instead
		executable, _ := os.Readlink(filepath.Join(dir, "exe"))
		if w.user != 0 && !strings.Contains(string(text), fmt.Sprintf("\nUid:\t%d\t", w.user)) || w.user == 0 && !strings.HasPrefix(executable, w.dir) {
			continue
		}
		p := process{}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		status, err := os.ReadFile(filepath.Join(dir, "stat"))
		fields := strings.Fields(string(status[bytes.LastIndexByte(status, ')')+1:]))
		if err != nil || len(fields) < 2 {
			continue // the process has exited
		}
		p.parent, _ = strconv.Atoi(fields[1])
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		p.isWarmShim = p.parent == w.manager.Process.Pid && filepath.Base(executable) == "berth-shim" && filepath.Base(filepath.Dir(cwd)) != "run"
		p.text = fmt.Sprintf("%d, parent %d, state %s, %s, in %s: %.200s", p.pid, p.parent, fields[0], executable, cwd, strings.ReplaceAll(string(line), "\x00", " "))
		found = append(found, p)
	}
	return found
}

// describeProcesses returns one line for each of the first 50 processes, and the number of the others.
func (w *world) describeProcesses(all []process) string {
	var text strings.Builder
	for i, p := range all {
		if i == 50 {
			fmt.Fprintf(&text, "and %d more", len(all)-i)
			break
		}
		fmt.Fprintln(&text, p.text)
	}
	return text.String()
}
