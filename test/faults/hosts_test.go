// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// testHost is a host with its own runtime, like a machine with its own state directory.
type testHost struct {
	name    string
	runtime *fake.Runtime
	hosts   *hosts.Hosts
	// down is true while the manager of the host does not run and the Lease of the host is not renewed.
	down bool
}

// hostOf returns the runtime of the leader with the given number, and the view that this leader has of all hosts. The view is nil if the world has no
// testHosts.
func (w *world) hostOf(number int) (*fake.Runtime, *hosts.Hosts) {
	if len(w.testHosts) == 0 {
		return w.rt, nil
	}
	return w.testHosts[number].runtime, w.testHosts[number].hosts
}

// newHostsWorld returns a world with one API server and two hosts, a and b.
func newHostsWorld(t *testing.T, s kindUnderTest, f faults) *world {
	t.Helper()
	w := newWorld(t, s, f)
	for _, name := range []string{"a", "b"} {
		known := hosts.New(hosts.Options{
			Name: name, Runtimes: []v1alpha1.RuntimeType{v1alpha1.RuntimeHost}, Namespace: key.Namespace,
			Client: w.api, Reader: w.api, Clock: w.clock, Log: logr.Discard(),
		})
		w.testHosts = append(w.testHosts, &testHost{name: name, runtime: w.newRuntime(), hosts: known})
	}
	w.renewLeases()
	return w
}

// newRuntime returns a runtime without processes. The runtime permits a second incarnation, so that the test detects a reconciler that starts one.
func (w *world) newRuntime() *fake.Runtime {
	rt := fake.New(w.ctx, w.clock)
	rt.Unguarded()
	rt.Program("stubborn", fake.Program{IgnoreStop: true})
	return rt
}

// renewLeases lets each host renew its Lease and read the Leases of all hosts. It makes two rounds, so that each host also sees the Leases that other hosts
// renewed after its first read.
func (w *world) renewLeases() {
	over, cancel := context.WithCancel(w.ctx)
	cancel() // Start renews and reads once before it waits for the end of the context
	for range 2 {
		for _, s := range w.testHosts {
			if !s.down {
				w.Expect(s.hosts.Start(over)).To(Succeed())
			}
		}
	}
}

// liveOnHosts returns the live incarnations on all hosts.
func (w *world) liveOnHosts() []int64 {
	var live []int64
	for _, s := range w.testHosts {
		live = append(live, s.runtime.Live(uid)...)
	}
	return live
}

// checkHosts checks the invariants of a world with several hosts. It is called after every call that changes something.
func (w *world) checkHosts() {
	if len(w.testHosts) == 0 {
		return
	}
	live := w.liveOnHosts()
	if len(live) > 1 {
		w.t.Errorf("incarnations %v live at once: %v on host a, %v on host b", live, w.testHosts[0].runtime.Live(uid), w.testHosts[1].runtime.Live(uid))
	}
	object := w.read()
	if object == nil {
		if len(live) > 0 {
			w.t.Errorf("incarnations %v outlive the object", live)
		}
		return
	}
	if exit := object.GetProcessStatus().LastExit; exit != nil && slices.Contains(live, exit.Incarnation) {
		w.t.Errorf("exit %s is recorded for incarnation %d, which is alive", exit.Reason, exit.Incarnation)
	}
}

// currentAndOtherHost returns the host that status.hostName names, and the other host.
func (w *world) currentAndOtherHost() (holder, other *testHost) {
	w.t.Helper()
	at := slices.IndexFunc(w.testHosts, func(s *testHost) bool { return s.name == w.read().GetProcessStatus().HostName })
	w.Expect(at).To(BeNumerically(">=", 0), "the object has a host")
	return w.testHosts[at], w.testHosts[1-at]
}

// relabel sets the host label of the object, or removes the label if host is empty. If lost is not empty, it becomes the value of the annotation
// berth.dev/lost-host.
func (w *world) relabel(host, lost string) {
	object := w.read()
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	delete(labels, v1alpha1.LabelHost)
	if host != "" {
		labels[v1alpha1.LabelHost] = host
	}
	if lost != "" {
		annotations = map[string]string{v1alpha1.AnnotationLostHost: lost}
	}
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
	w.Expect(w.api.Update(w.ctx, object)).To(Succeed())
	w.recordState()
}

// hostsScenario is the life of an object that two hosts can serve.
var hostsScenario = []step{
	{"create", (*world).create},
	{"restart", func(w *world) { w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "one" }) }},
	{"crash", func(w *world) {
		holder, _ := w.currentAndOtherHost()
		holder.runtime.Exit(uid, facts.Exit{Known: true, Code: 3})
	}},
	{"move", func(w *world) {
		_, other := w.currentAndOtherHost()
		w.relabel(other.name, "")
	}},
	{"label removed", func(w *world) { w.relabel("", "") }},
	{"stubborn from now on", func(w *world) {
		w.change(func(s *v1alpha1.ProcessSpec) { s.Process.Command = []string{"stubborn"} })
	}},
	{"move and restart", func(w *world) {
		_, other := w.currentAndOtherHost()
		w.relabel(other.name, "")
		w.change(func(s *v1alpha1.ProcessSpec) { s.RestartToken = "two" })
	}},
	{"the host does not report", func(w *world) {
		holder, _ := w.currentAndOtherHost()
		holder.down = true
		w.clock.SetTime(w.clock.Now().Add(hosts.Duration))
		w.renewLeases()
	}},
	{"the host reports again", func(w *world) {
		for _, s := range w.testHosts {
			s.down = false
		}
		w.renewLeases()
	}},
	{"the host is declared lost", func(w *world) {
		holder, other := w.currentAndOtherHost()
		holder.down = true
		holder.runtime = w.newRuntime() // the machine was lost with its processes
		w.clock.SetTime(w.clock.Now().Add(hosts.Duration))
		w.renewLeases()
		w.relabel(other.name, holder.name)
	}},
	{"the lost host returns", func(w *world) {
		for _, s := range w.testHosts {
			s.down = false
		}
		w.renewLeases()
	}},
	{"move to the returned host", func(w *world) {
		_, other := w.currentAndOtherHost()
		w.relabel(other.name, "")
	}},
	{"move away from it again", func(w *world) {
		_, other := w.currentAndOtherHost()
		w.relabel(other.name, "")
	}},
	{"move to it and delete", func(w *world) {
		_, other := w.currentAndOtherHost()
		w.relabel(other.name, "")
		w.Expect(w.api.Delete(w.ctx, w.read())).To(Succeed())
		w.recordState()
	}},
}

// runHostsScenarioWith runs the scenario of two hosts. After the event of each step it calls toRest, which reconciles until the object is at rest.
func (w *world) runHostsScenarioWith(toRest func(step string)) []outcome {
	w.t.Helper()
	outcomes := make([]outcome, 0, len(hostsScenario))
	starts := 0
	machines := map[*fake.Runtime]bool{}
	var last *testHost
	for i, step := range hostsScenario {
		if i == len(hostsScenario)-1 {
			last, _ = w.currentAndOtherHost()
		}
		step.do(w)
		toRest(step.name)
		for _, s := range w.testHosts {
			machines[s.runtime] = true
		}
		starts = 0
		for machine := range machines {
			starts += machine.Count(uid, fake.Start)
		}
		outcomes = append(outcomes, outcome{Step: step.name, Status: sortLines(describe(w.read())), Starts: starts, Live: w.liveOnHosts()})
		if w.t.Failed() {
			w.t.Fatalf("after %s", step.name)
		}
	}
	// Records of ended processes may remain on the other host if the manager of that host crashed after it had released the object. The collector of
	// orphans, which does not run here, removes such records.
	w.Expect(last.runtime.Known()).To(BeEmpty(), "no process may remain on host %s", last.name)
	return outcomes
}

// sortLines sorts the lines of a description. Otherwise the order of the conditions would differ between runs, because a failed start adds a condition
// earlier.
func sortLines(description string) string {
	lines := strings.Split(description, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// hostsAtRest reports whether the object is at rest: further reconciles would change nothing. An object that waits for a host that is down is at rest, too.
func (w *world) hostsAtRest() bool {
	object := w.read()
	if object == nil || !atRest(object) {
		return object == nil
	}
	if ready := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionReady); ready.Reason == v1alpha1.ReasonHostUnavailable {
		return slices.ContainsFunc(w.testHosts, func(s *testHost) bool { return s.down })
	}
	holder := object.GetProcessStatus().HostName
	return holder != "" && holder == object.GetLabels()[v1alpha1.LabelHost] &&
		!slices.ContainsFunc(w.testHosts, func(s *testHost) bool { return s.down && s.name == holder })
}

// runHostsScenario runs the scenario with two managers that take turns. If a call of a manager fails, the manager continues if survives is true; otherwise it
// crashes and is replaced.
func (w *world) runHostsScenario(survives bool) []outcome {
	w.t.Helper()
	managers := []*process.Reconciler{w.newReconciler(0), w.newReconciler(1)}
	return w.runHostsScenarioWith(func(step string) {
		for i, s := range w.testHosts {
			if managers[i].Runtimes.For("").(*faultyRuntime).Runtime != s.runtime {
				managers[i] = w.newReconciler(i)
			}
		}
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			quiet, wait := true, time.Minute
			for i, s := range w.testHosts {
				if s.down {
					continue
				}
				writes, acts := w.writes, w.acts
				result, err := managers[i].Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
				if err != nil {
					w.Expect(errors.Is(err, errFault)).To(BeTrue(), "%s: %v", step, err)
					if !survives {
						managers[i] = w.newReconciler(i)
					}
				}
				quiet = quiet && err == nil && w.writes == writes && w.acts == acts && !w.lagged[i]
				if result.RequeueAfter > 0 {
					wait = min(wait, result.RequeueAfter)
				}
			}
			switch {
			case !quiet:
			case w.hostsAtRest():
				return
			default:
				w.clock.SetTime(w.clock.Now().Add(wait))
				w.renewLeases()
			}
		}
		w.t.Fatalf("%s: did not come to rest: %s", step, describe(w.read()))
	})
}

// hostKinds are the kinds whose objects two hosts serve in these tests.
var hostKinds = []kindUnderTest{kindsUnderTest[0], kindsUnderTest[2]}

// TestHosts_FaultAtEveryCall runs two managers, each with its own runtime, and makes one of their calls fail. The failing call either has no effect or takes
// effect without a response, and the manager either continues or is replaced. At any time, the two hosts together may have at most one live incarnation, and
// the status must not record an exit of a live incarnation.
func TestHosts_FaultAtEveryCall(t *testing.T) {
	for i, s := range hostKinds {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			reference := newHostsWorld(t, s, faults{lag: func(int) int { return 0 }})
			want := reference.runHostsScenario(true)
			reference.Expect(want[len(want)-1].Starts).To(Equal(9), "the scenario must be complete")
			for call, count := range map[string]int{"write": reference.writes, "act": reference.acts} {
				for n := 1; n <= count; n += 1 + 2*min(i, 1) {
					for _, after := range []bool{false, true} {
						for _, survives := range []bool{false, true} {
							t.Run(fmt.Sprintf("%s %d, with effect %t, manager survives %t", call, n, after, survives), func(t *testing.T) {
								w := newHostsWorld(t, s, faults{})
								fault := faultAtCall(n, after, func() {})
								if call == "write" {
									w.faults.write = fault
								} else {
									w.faults.act = fault
								}
								compareHosts(t, want, w.runHostsScenario(survives))
							})
						}
					}
				}
			}
		})
	}
}

// TestHosts_RandomFaults runs the same scenario with many random faults and stale caches. The subtest name contains the seed.
func TestHosts_RandomFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 3))
			sometimes := func(int, bool) error {
				if random.IntN(6) == 0 {
					return errFault
				}
				return nil
			}
			lag := func(int) int { return max(0, random.IntN(5)-2) }
			newHostsWorld(t, kindsUnderTest[0], faults{write: sometimes, act: sometimes, lag: lag}).runHostsScenario(seed%2 == 0)
		})
	}
}

func compareHosts(t *testing.T, want, got []outcome) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs from the run without faults (-without +with):\n%s", diff)
	}
}
