// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/claim"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/presence"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// desk is an Instance that runs, with a clock that is moved by hand.
type desk struct {
	*GomegaWithT
	t        *testing.T
	clock    *clocktesting.FakePassiveClock
	runtime  *fake.Runtime
	kind     *Kind
	book     *presence.Book
	instance *v1alpha1.Instance
}

var morning = time.Unix(1_800_000_000, 0)

func newDesk(t *testing.T) *desk {
	d := &desk{GomegaWithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(morning)}
	d.runtime, d.book = fake.New(t.Context(), d.clock), presence.New(d.clock)
	d.kind = New(nil, runtime.NewRegistry(d.runtime, logr.Discard()), d.clock)
	d.kind.present = d.book
	d.instance = &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claude", UID: "claude", Generation: 1}}
	d.instance.Status.Incarnation, d.instance.Status.ObservedGeneration = 1, 1
	started := metav1.NewMicroTime(morning)
	d.instance.Status.Process = &v1alpha1.ProcessReference{Incarnation: 1, StartedAt: &started}
	d.Expect(d.runtime.Start(t.Context(), runtime.Process{UID: "claude", Incarnation: 1, Command: []string{"claude"}})).To(Succeed())
	return d
}

func (d *desk) pass(by time.Duration) { d.clock.SetTime(d.clock.Now().Add(by)) }

// look looks, and says when to do so again.
func (d *desk) look() time.Duration {
	again, err := d.kind.Look(d.t.Context(), d.instance, facts.Incarnation{UID: "claude", Number: 1, Phase: facts.Running, StartedAt: morning}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	return again
}

func (d *desk) asleep() bool { return d.kind.Asleep(d.t.Context(), d.instance, d.clock.Now()) }

func (d *desk) condition(conditionType string) metav1.Condition {
	found := meta.FindStatusCondition(d.instance.Status.Conditions, conditionType)
	d.Expect(found).NotTo(BeNil(), conditionType+" is not set")
	return *found
}

func (d *desk) reason(conditionType string) string { return d.condition(conditionType).Reason }

func TestActivityIsWrittenTwiceAMinute(t *testing.T) {
	d := newDesk(t)
	d.look()
	d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(morning), "a start is activity")
	writes := map[int64]bool{}
	for range 150 { // two seconds each
		d.pass(2 * time.Second)
		d.runtime.Show("claude", "working")
		d.Expect(d.look()).To(And(BeNumerically(">", 0), BeNumerically("<=", stillness)), "it is not seen when it stands still")
		writes[d.instance.Status.LastActivityTime.Unix()] = true
	}
	d.Expect(len(writes)).To(BeNumerically("<=", 11), "writes in five minutes, with the first")
	d.Expect(len(writes)).To(BeNumerically(">=", 9))

	d.pass(time.Minute)
	d.look()
	last := *d.instance.Status.LastActivityTime
	d.Expect(last.Time).To(Equal(d.clock.Now().Add(-time.Minute)), "the last of it is not written")
	before := d.instance.DeepCopy()
	for range 10 {
		d.pass(time.Hour)
		d.Expect(d.look()).To(BeZero(), "a session at rest is looked at")
	}
	d.Expect(d.instance.Status).To(Equal(before.Status), "a session at rest is written")
	d.Expect(d.runtime.Captured("claude")).To(Equal(1), "its screen is looked at more than once")

	d.book.Touch("claude")
	d.look()
	d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(d.clock.Now()), "what was typed is no activity")
}

// TestTimeoutThatIsOver: it is given to a session that nobody has used for longer.
func TestTimeoutThatIsOver(t *testing.T) {
	d := newDesk(t)
	d.look()
	d.pass(time.Hour)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	d.instance.Generation++
	d.Expect(d.asleep()).To(BeFalse(), "who edits the spec asks for it")
	d.Expect(d.look()).To(Equal(decideAgain), "nobody looks again")
	d.instance.Status.ObservedGeneration = d.instance.Generation
	d.Expect(d.asleep()).To(BeTrue())
}

func TestWhatNobodyUsesSleeps(t *testing.T) {
	d := newDesk(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](0)
	d.look()
	d.Expect(d.reason(v1alpha1.ConditionIdle)).To(Equal(v1alpha1.ReasonNoIdleTimeout))
	d.pass(24 * time.Hour)
	d.Expect(d.asleep()).To(BeFalse(), "it sleeps without a timeout")

	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](600)
	d.runtime.Show("claude", "hello")
	d.pass(stillness)
	d.Expect(d.look()).To(Equal(600*time.Second-stillness), "it is not looked at when it will be idle")
	d.Expect(d.reason(v1alpha1.ConditionIdle)).To(Equal(v1alpha1.ReasonActive))
	d.pass(590 * time.Second)
	d.book.Touch("claude")
	d.pass(20 * time.Second)
	d.Expect(d.asleep()).To(BeFalse(), "somebody has typed")
	d.pass(580 * time.Second)
	d.Expect(d.asleep()).To(BeTrue())
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))

	// From here on the record says so, whatever the manager remembers.
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonIdle}
	d.Expect(d.asleep()).To(BeTrue())
	d.instance.Status.Stopping, d.instance.Status.Process = nil, nil
	meta.SetStatusCondition(&d.instance.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIdle})
	d.Expect(d.asleep()).To(BeTrue())
	d.kind.Rest(d.t.Context(), d.instance)
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.instance.Status.AttachCommand).To(Equal("berth attach instance/claude"), "tmux wakes nobody")
	d.Expect(claim.Wants(d.instance)).To(BeTrue(), "its place is given away")

	leave := d.book.Use("claude")
	d.Expect(d.asleep()).To(BeFalse(), "who comes does not wake it")
	leave()
	d.Expect(d.asleep()).To(BeTrue())
	d.instance.Generation++
	d.Expect(d.asleep()).To(BeFalse(), "an edit of the spec does not wake it")
}

func TestWhatWasAdoptedDoesNotSleep(t *testing.T) {
	d := newDesk(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	adopted := metav1.Condition{Type: v1alpha1.ConditionAdopted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAdopted}
	meta.SetStatusCondition(&d.instance.Status.Conditions, adopted)
	d.pass(time.Hour)
	d.Expect(d.asleep()).To(BeFalse(), "what is not Berth's is ended")
	_, err := d.kind.Look(t.Context(), d.instance, facts.Incarnation{UID: "claude", Adopted: true, StartedAt: morning}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.condition(v1alpha1.ConditionIdle).Message).To(ContainSubstring("adopted"))
	d.instance.Spec.DeletionPolicy = v1alpha1.DeletionTerminate
	d.Expect(d.asleep()).To(BeTrue())
}

func TestARestartIsNotIdle(t *testing.T) {
	d := newDesk(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	d.pass(time.Hour)
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonSpecChanged}
	d.Expect(d.asleep()).To(BeFalse(), "a restart that somebody asked for ends in sleep")
}

const question = "This deletes 12 files. Go on? [y/N] "

func TestAwaitingInput(t *testing.T) {
	d := newDesk(t)
	d.look()
	d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonNotAwaitingInput))
	d.pass(time.Second)
	d.runtime.Show("claude", question)
	d.Expect(d.look()).To(Equal(stillness))
	d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonNotAwaitingInput), "it may still go on")
	d.pass(stillness)
	before := d.instance.DeepCopy()
	d.look()
	waiting := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(waiting.Status).To(Equal(metav1.ConditionTrue))
	d.Expect(waiting.Message).NotTo(ContainSubstring("deletes"), "what the terminal shows may be a secret")
	var step lifecycle.Step
	d.kind.DeriveStatus(d.instance, before, &step, d.clock.Now())
	d.kind.DeriveStatus(d.instance, d.instance, &step, d.clock.Now())
	d.Expect(step.Events).To(HaveLen(1), "it is told once")

	// The same question drawn anew is no answer; output behind it is, at once.
	d.pass(time.Minute)
	d.runtime.Show("claude", question)
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	d.pass(time.Second)
	d.runtime.Show("claude", question+"y\nremoved")
	d.Expect(d.look()).To(Equal(stillness))
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))

	// What an incarnation before has asked is nobody's question any more.
	d.runtime.Show("claude", question)
	d.pass(stillness)
	_, err := d.kind.Look(t.Context(), d.instance, facts.Incarnation{UID: "claude", Number: 2, StartedAt: d.clock.Now()}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))
	d.kind.Rest(t.Context(), d.instance)
	d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonNotRunning))
}

// TestAwaitingInput_ByHowTheTerminalIsRead checks that the report of the operating system takes precedence over patterns, and that each change causes one
// inspection.
func TestAwaitingInput_ByHowTheTerminalIsRead(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		input facts.Input
		want  metav1.ConditionStatus
	}{
		"a prompt that no pattern knows":       {"Deploy where ", facts.Input{Reader: facts.ReaderRead, Program: "tool", Canonical: true, Echo: true}, metav1.ConditionTrue},
		"a question that no program waits for": {question, facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}, metav1.ConditionFalse},
		"a shell at its prompt":                {"me@host:~$ ", facts.Input{Reader: facts.ReaderPoll, Program: "bash"}, metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.pass(time.Second)
			d.runtime.Reads("claude", tc.input)
			d.runtime.Show("claude", tc.text)
			d.pass(stillness)
			for range 10 {
				d.look()
				d.pass(time.Minute)
			}
			d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(tc.want))
			d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Message).NotTo(ContainSubstring("Deploy"), "what the terminal shows may be a secret")
			d.Expect(d.runtime.Captured("claude")).To(Equal(1), "its screen is inspected more than once")
			d.Expect(d.runtime.Inspected("claude")).To(Equal(1), "its processes are inspected more than once")
		})
	}
}

// TestAQuestionOutlivesTheManager: what another manager has seen holds until something happens, though the runtime may have less to go by now.
func TestAQuestionOutlivesTheManager(t *testing.T) {
	d := newDesk(t)
	d.pass(time.Second)
	d.runtime.Show("claude", question)
	d.pass(stillness)
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	next := func() {
		d.kind = New(nil, runtime.NewRegistry(d.runtime, logr.Discard()), d.clock)
		d.pass(time.Minute)
	}
	next()
	d.Expect(d.look()).To(BeZero(), "it is told when it moves")
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.runtime.Captured("claude")).To(Equal(1), "its screen is looked at again")

	next()
	d.runtime.Show("claude", "done")
	d.pass(stillness)
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "it has moved since")

	d.runtime.Show("claude", question)
	d.pass(stillness)
	d.look()
	next()
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$"}
	d.instance.Generation++
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "it is asked for something else")
}

func TestPatternsOfTheSpec(t *testing.T) {
	d := newDesk(t)
	d.pass(time.Second)
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$", "("}
	d.runtime.Show("claude", question)
	d.pass(stillness)
	d.look()
	wrong := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(wrong.Status).To(Equal(metav1.ConditionUnknown))
	d.Expect(wrong.Reason).To(Equal(v1alpha1.ReasonInvalidPattern))
	d.Expect(wrong.Message).To(ContainSubstring("patterns[1]"))
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$"}
	d.instance.Generation++
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the defaults hold although there are patterns")
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).ObservedGeneration).To(Equal(d.instance.Generation))
	d.pass(time.Second)
	d.runtime.Show("claude", "mine> ")
	d.pass(stillness)
	d.look()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
}

// TestPatternsThatAreTooLarge: each of them would take 54 MB to compile, and seconds to match.
func TestPatternsThatAreTooLarge(t *testing.T) {
	d := newDesk(t)
	attack := `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`
	d.instance.Spec.Terminal.AwaitingInput.Patterns = slices.Repeat([]string{attack}, 16)
	d.look()
	d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonInvalidPattern), "it is not reported before something is shown")

	d.instance.Spec.Terminal.Columns = ptr.To[int32](1000)
	d.runtime.Show("claude", strings.Repeat(strings.Repeat("x", 1000)+"\n", 20))
	d.pass(stillness)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	for range 100 {
		d.instance.Generation++ // each is a reason to look
		d.look()
	}
	goruntime.ReadMemStats(&after)
	d.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 64<<20), "bytes in 100 looks")
	wrong := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(wrong.Status).To(Equal(metav1.ConditionUnknown))
	d.Expect(wrong.Reason).To(Equal(v1alpha1.ReasonInvalidPattern))
	d.Expect(wrong.Message).To(And(ContainSubstring("spec.terminal.awaitingInput.patterns[0]"), ContainSubstring("2048")))
	d.Expect(d.look()).To(BeZero(), "it is looked at again although nothing has changed")
}

func TestWhatEndsWithTheProgramIsNamed(t *testing.T) {
	d := newDesk(t)
	told := events.NewFakeRecorder(10)
	d.kind.recorder = told
	before := d.instance.DeepCopy()
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonIdle}
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, before, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(told.Events).To(BeEmpty(), "nothing but the program ends")
	d.runtime.Spawn("claude", runtime.Member{PID: 7, Name: "sleep"}, runtime.Member{PID: 9, Name: "node"})
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, before, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(told.Events).To(Receive(ContainSubstring("With the program end the processes that it has started, 2: sleep (7), node (9).")))
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, d.instance, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(told.Events).To(BeEmpty(), "it is told again")
	many := make([]runtime.Member, 25)
	d.Expect(strings.Count(ending(many), "(0)")).To(Equal(mostNamed))
	d.Expect(ending(many)).To(HaveSuffix(", 5 more."))
}
