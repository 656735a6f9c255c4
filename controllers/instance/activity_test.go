// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
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
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// fixture is a running Instance with a fake clock.
type fixture struct {
	*GomegaWithT
	t        *testing.T
	clock    *clocktesting.FakePassiveClock
	runtime  *fake.Runtime
	kind     *Kind
	tracker  *activity.Tracker
	instance *v1alpha1.Instance
}

var morning = time.Unix(1_800_000_000, 0)

func newFixture(t *testing.T) *fixture {
	d := &fixture{GomegaWithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(morning)}
	d.runtime, d.tracker = fake.New(t.Context(), d.clock), activity.New(d.clock)
	d.kind = New(nil, runtime.NewRegistry(d.runtime, logr.Discard()), d.clock)
	d.kind.present = d.tracker
	d.tracker.Rise("claude") // the Instance is reconciled
	d.instance = &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claude", UID: "claude", Generation: 1}}
	d.instance.Status.Incarnation, d.instance.Status.ObservedGeneration = 1, 1
	started := metav1.NewMicroTime(morning)
	d.instance.Status.Process = &v1alpha1.ProcessReference{Incarnation: 1, StartTime: &started}
	d.Expect(d.runtime.Start(t.Context(), runtime.Process{UID: "claude", Incarnation: 1, Command: []string{"claude"}})).To(Succeed())
	return d
}

func (d *fixture) advance(by time.Duration) { d.clock.SetTime(d.clock.Now().Add(by)) }

// observe calls ObserveRunning and returns when to call it again.
func (d *fixture) observe() time.Duration {
	again, err := d.kind.ObserveRunning(d.t.Context(), d.instance, facts.Incarnation{UID: "claude", Number: 1, Phase: facts.Running, StartedAt: morning}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	return again
}

func (d *fixture) asleep() bool { return d.kind.Asleep(d.t.Context(), d.instance, d.clock.Now()) }

func (d *fixture) condition(conditionType string) metav1.Condition {
	if found := meta.FindStatusCondition(d.instance.Status.Conditions, conditionType); found != nil {
		return *found
	}
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse} // an absent condition is False
}

func (d *fixture) reason(conditionType string) string { return d.condition(conditionType).Reason }

func TestActivity_IsWrittenTwiceAMinute(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(morning), "a start is activity")
	writes := map[int64]bool{}
	for i := range 150 { // two seconds each
		d.advance(2 * time.Second)
		d.runtime.Show("claude", fmt.Sprint("working on file ", i))
		d.Expect(d.observe()).To(And(BeNumerically(">", 0), BeNumerically("<=", stillness)), "requeued to notice when the output stops")
		writes[d.instance.Status.LastActivityTime.Unix()] = true
	}
	d.Expect(len(writes)).To(BeNumerically("<=", 11), "writes in five minutes, including the first")
	d.Expect(len(writes)).To(BeNumerically(">=", 9))

	d.advance(time.Minute)
	d.observe()
	last := *d.instance.Status.LastActivityTime
	d.Expect(last.Time).To(Equal(d.clock.Now().Add(-time.Minute)), "the last activity is written")
	before, captured := d.instance.DeepCopy(), d.runtime.Captured("claude")
	for range 10 {
		d.advance(time.Hour)
		d.Expect(d.observe()).To(BeZero(), "a session at rest is not inspected")
	}
	d.Expect(d.instance.Status).To(Equal(before.Status), "a session at rest is not written")
	d.Expect(d.runtime.Captured("claude")).To(Equal(captured), "the screen of a session at rest is not captured again")

	d.tracker.Touch("claude")
	d.observe()
	d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(d.clock.Now()), "typing is activity")
}

// TestIdleTimeout_EditOfSpecCountsAsUse sets a timeout that an unused session has already exceeded.
func TestIdleTimeout_EditOfSpecCountsAsUse(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.advance(time.Hour)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	d.instance.Generation++
	d.Expect(d.asleep()).To(BeFalse(), "an edit of the spec counts as use")
	d.Expect(d.observe()).To(Equal(decideAgain), "requeued to decide again")
	d.instance.Status.ObservedGeneration = d.instance.Generation
	d.Expect(d.asleep()).To(BeTrue())
}

func TestAsleep_FromIdleTimeoutUntilUse(t *testing.T) {
	d := newFixture(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](0)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionFalse))
	d.advance(24 * time.Hour)
	d.Expect(d.asleep()).To(BeFalse(), "without a timeout the Instance does not sleep")

	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](600)
	d.runtime.Show("claude", "hello")
	d.advance(stillness)
	d.Expect(d.observe()).To(Equal(600*time.Second-stillness), "requeued for when it becomes idle")
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionFalse))
	d.advance(590 * time.Second)
	d.tracker.Touch("claude")
	d.advance(20 * time.Second)
	d.Expect(d.asleep()).To(BeFalse(), "a user has typed")
	d.advance(580 * time.Second)
	d.Expect(d.asleep()).To(BeTrue())
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))

	// From here on, the status records that the Instance is being put to sleep or is asleep. The status then decides, regardless of the state in memory.
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonIdle}
	d.Expect(d.asleep()).To(BeTrue())
	d.instance.Status.Stopping, d.instance.Status.Process = nil, nil
	meta.SetStatusCondition(&d.instance.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIdle})
	d.Expect(d.asleep()).To(BeTrue())
	d.kind.ObserveStopped(d.t.Context(), d.instance)
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.instance.Status.AttachCommand).To(Equal("berth attach instance/claude"), "attaching with tmux would not wake the Instance")
	d.Expect(arbitration.Wants(d.instance)).To(BeTrue(), "a sleeping Instance keeps its claim")

	leave := d.tracker.Use("claude")
	d.Expect(d.asleep()).To(BeFalse(), "a user who attaches wakes the Instance")
	leave()
	d.Expect(d.asleep()).To(BeTrue())
	d.instance.Generation++
	d.Expect(d.asleep()).To(BeFalse(), "an edit of the spec wakes the Instance")
}

func TestAsleep_IsFalseForAdoptedSession(t *testing.T) {
	d := newFixture(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	adopted := metav1.Condition{Type: v1alpha1.ConditionAdopted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAdopted}
	meta.SetStatusCondition(&d.instance.Status.Conditions, adopted)
	d.advance(time.Hour)
	d.Expect(d.asleep()).To(BeFalse(), "an adopted session is not stopped")
	_, err := d.kind.ObserveRunning(t.Context(), d.instance, facts.Incarnation{UID: "claude", Adopted: true, StartedAt: morning}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.condition(v1alpha1.ConditionIdle).Message).To(ContainSubstring("adopted"))
	d.instance.Spec.DeletionPolicy = v1alpha1.DeletionTerminate
	d.Expect(d.asleep()).To(BeTrue())
}

func TestAsleep_IsFalseDuringRestart(t *testing.T) {
	d := newFixture(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	d.advance(time.Hour)
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonSpecChanged}
	d.Expect(d.asleep()).To(BeFalse(), "a requested restart does not end in sleep")
}

const question = "This deletes 12 files. Go on? [y/N] "

func TestAwaitingInput_IsTrueWhileQuestionIsShown(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))
	d.advance(time.Second)
	d.runtime.Show("claude", question)
	d.Expect(d.observe()).To(Equal(glanceEvery))
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the output may still continue")
	d.advance(glanceEvery)
	before := d.instance.DeepCopy()
	d.observe()
	waiting := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(waiting.Status).To(Equal(metav1.ConditionTrue))
	d.Expect(waiting.Message).NotTo(ContainSubstring("deletes"), "the content of the terminal may be secret")
	d.Expect(d.kind.DeriveStatus(d.instance, before, lifecycle.Step{}, d.clock.Now())).To(HaveLen(1))
	d.Expect(d.kind.DeriveStatus(d.instance, d.instance, lifecycle.Step{}, d.clock.Now())).To(BeEmpty(), "the event is emitted once")

	// If the program draws the same question again, the condition stays True. If the program prints more after the question, the condition becomes False
	// after the time of a frame.
	d.advance(time.Minute)
	d.runtime.Show("claude", question)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	d.advance(time.Second)
	d.runtime.Show("claude", question+"y\nremoved")
	d.Expect(d.observe()).To(Equal(frameTime))
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue), "the screen may be half of a frame")
	d.advance(frameTime)
	d.Expect(d.observe()).To(Equal(glanceEvery-frameTime), "requeued to read what the program tells its terminal")
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))

	// A question of an earlier incarnation no longer counts.
	d.runtime.Show("claude", question)
	d.advance(stillness)
	_, err := d.kind.ObserveRunning(t.Context(), d.instance, facts.Incarnation{UID: "claude", Number: 2, StartedAt: d.clock.Now()}, &lifecycle.Observed{})
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))
	d.kind.ObserveStopped(t.Context(), d.instance)
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))
}

// animation is a screen with a question, and a spinner and a clock that never stand still. i is the number of the frame.
func animation(i int) string {
	return fmt.Sprintf("%c Reading 1 file\n10:%02d:%02d\nDo you want to proceed?\n ❯ 1. Yes\n   2. No\n", []rune("●○◐")[i%3], i/60%60, i%60)
}

// animate shows frames for a time, and reconciles when requested. It returns when the condition was first True, -1 for never, and how often the condition changed.
func (d *fixture) animate(frame func(i int) string, every, length time.Duration) (asked time.Duration, changes int) {
	asked = -1
	last := d.condition(v1alpha1.ConditionAwaitingInput).Status
	next := time.Duration(0)
	for passed := time.Duration(0); passed < length; passed += 50 * time.Millisecond {
		if passed%every == 0 {
			d.runtime.Show("claude", frame(int(passed/every)))
		}
		if passed >= next {
			next = passed + max(d.observe(), 10*time.Millisecond)
		}
		now := d.condition(v1alpha1.ConditionAwaitingInput).Status
		if now == metav1.ConditionTrue && asked < 0 {
			asked = passed
		}
		if now != last {
			last, changes = now, changes+1
		}
		d.advance(50 * time.Millisecond)
	}
	return asked, changes
}

// TestAwaitingInput_IsTrueBesideAnimation shows a question on a screen that is never still: the condition is True within two seconds and stays True until the
// answer, and the Instance becomes idle.
func TestAwaitingInput_IsTrueBesideAnimation(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 600 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			d := newFixture(t)
			d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
			d.advance(time.Second)
			asked, changes := d.animate(func(i int) string { return fmt.Sprintf("%c Working %d", []rune("●○")[i%2], i) }, every, 6*time.Second)
			d.Expect(asked).To(BeNumerically("<", 0))
			d.Expect(changes).To(BeZero())
			asked, changes = d.animate(animation, every, 50*time.Second)
			d.Expect(asked).To(And(BeNumerically(">", 0), BeNumerically("<=", 2*time.Second)))
			d.Expect(changes).To(Equal(1), "the condition does not flap")
			d.Expect(d.asleep()).To(BeFalse())
			noted := d.instance.Status.LastActivityTime.DeepCopy()
			d.animate(animation, every, 15*time.Second)
			d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(noted.Time), "repaints are not recorded as activity")
			d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionTrue))
			d.Expect(d.asleep()).To(BeTrue(), "repaints are no activity")

			d.runtime.Show("claude", "1. Yes\nremoved the files")
			d.Expect(d.asleep()).To(BeFalse(), "new text after the last examination is activity")
			d.observe()
			d.advance(frameTime)
			d.observe()
			d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))
			d.Expect(d.condition(v1alpha1.ConditionIdle).Status).To(Equal(metav1.ConditionFalse))
		})
	}
}

// TestAwaitingInput_IsTrueAboveSlowClock shows a prompt above a clock that is still for longer than an examination of the whole screen takes.
func TestAwaitingInput_IsTrueAboveSlowClock(t *testing.T) {
	d := newFixture(t)
	d.advance(time.Second)
	d.runtime.Reads("claude", facts.Input{Reader: facts.ReaderRead, Program: "tool", Canonical: true, Echo: true})
	d.animate(func(i int) string { return fmt.Sprintf("Deploy where \x1b7\x1b[40;1H10:%02d\x1b8", i) }, 800*time.Millisecond, 4*time.Second)
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	_, changes := d.animate(func(i int) string { return fmt.Sprintf("Deploy where \x1b7\x1b[40;1H11:%02d\x1b8", i) }, 5*time.Second, 30*time.Second)
	d.Expect(changes).To(BeZero(), "the condition does not flap")
}

// TestAsleep_IsFalseForWorkThatOnlyBlinks checks that an Instance is not idle while its program shows that it works with nothing but digits or a mark.
func TestAsleep_IsFalseForWorkThatOnlyBlinks(t *testing.T) {
	d := newFixture(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](30)
	d.animate(func(i int) string { return fmt.Sprintf("Epoch %d/9000 [00:10]", i) }, 500*time.Millisecond, 40*time.Second)
	d.Expect(d.asleep()).To(BeFalse(), "progress is activity")
	blinks := func(text string, input facts.Input) {
		d.runtime.Reads("claude", input)
		d.animate(func(i int) string { return string([]rune("●○")[i%2]) + text }, 500*time.Millisecond, 40*time.Second)
	}
	reads := facts.Input{Reader: facts.ReaderPoll, Program: "agent"}
	blinks(" Computing", facts.Input{Reader: facts.ReaderNone})
	d.Expect(d.asleep()).To(BeFalse(), "a program that does not read the terminal works")
	blinks(" Computing", facts.Input{})
	d.Expect(d.asleep()).To(BeFalse(), "the program may be working")
	blinks(" esc interrupt", reads)
	d.Expect(d.asleep()).To(BeFalse(), "the agent works")
	blinks(" Ask anything", reads)
	d.Expect(d.asleep()).To(BeTrue(), "a mark that blinks while the program reads is no activity")
}

// TestAwaitingInput_IsFalseForWorkThatMoves shows text that looks like a question only at moments.
func TestAwaitingInput_IsFalseForWorkThatMoves(t *testing.T) {
	for name, frame := range map[string]func(i int) string{
		"a log of questions":               func(i int) string { return fmt.Sprintf("file %d. Continue? [y/N]", i) },
		"progress below a question":        func(i int) string { return fmt.Sprintf("Press Enter to continue\n%d %%\n", i) },
		"a question that is soon replaced": func(i int) string { return []string{"Go on? [y/N] ", "Compiling\n", "Linking\n", "Testing\n"}[i%4] },
	} {
		t.Run(name, func(t *testing.T) {
			d := newFixture(t)
			d.advance(time.Second)
			asked, _ := d.animate(frame, 450*time.Millisecond, 30*time.Second)
			d.Expect(asked).To(BeNumerically("<", 0))
		})
	}
}

// TestAwaitingInput_PrefersReportOfOperatingSystem checks that the report of the operating system takes precedence over patterns, and that each change causes
// one inspection.
func TestAwaitingInput_PrefersReportOfOperatingSystem(t *testing.T) {
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
			d := newFixture(t)
			d.advance(time.Second)
			d.runtime.Reads("claude", tc.input)
			d.runtime.Show("claude", tc.text)
			d.advance(stillness)
			for range 10 {
				d.observe()
				d.advance(time.Minute)
			}
			d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(tc.want))
			d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Message).NotTo(ContainSubstring("Deploy"), "the content of the terminal may be secret")
			d.Expect(d.runtime.Captured("claude")).To(Equal(1), "the screen is captured only once")
			d.Expect(d.runtime.Inspected("claude")).To(Equal(1), "the processes are inspected only once")
		})
	}
}

// TestAwaitingInput_SurvivesManagerRestart checks that a new manager keeps the condition of an earlier manager until the terminal or the patterns change, and
// does not capture the screen before that.
func TestAwaitingInput_SurvivesManagerRestart(t *testing.T) {
	d := newFixture(t)
	d.advance(time.Second)
	d.runtime.Show("claude", question)
	d.advance(stillness)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	restartManager := func() {
		d.kind = New(nil, runtime.NewRegistry(d.runtime, logr.Discard()), d.clock)
		d.advance(time.Minute)
	}
	restartManager()
	d.Expect(d.observe()).To(BeZero(), "the next change of the terminal is an event")
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
	d.Expect(d.runtime.Captured("claude")).To(Equal(1), "the screen is not captured again")

	restartManager()
	d.runtime.Show("claude", "done")
	d.advance(stillness)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the screen has changed since")

	d.runtime.Show("claude", question)
	d.advance(stillness)
	d.observe()
	restartManager()
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$"}
	d.instance.Generation++
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the new pattern does not match")
}

func TestAwaitingInput_UsesPatternsOfSpec(t *testing.T) {
	d := newFixture(t)
	d.advance(time.Second)
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$", "("}
	d.runtime.Show("claude", question)
	d.advance(stillness)
	d.observe()
	wrong := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(wrong.Status).To(Equal(metav1.ConditionUnknown))
	d.Expect(wrong.Reason).To(Equal(v1alpha1.ReasonInvalidPattern))
	d.Expect(wrong.Message).To(ContainSubstring("patterns[1]"))
	d.instance.Spec.Terminal.AwaitingInput.Patterns = []string{"mine>$"}
	d.instance.Generation++
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "patterns replace the defaults")
	d.advance(time.Second)
	d.runtime.Show("claude", "mine> ")
	d.advance(stillness)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionTrue))
}

// TestAwaitingInput_RejectsLargePatterns uses patterns that would each take 54 MB to compile and seconds to match.
func TestAwaitingInput_RejectsLargePatterns(t *testing.T) {
	d := newFixture(t)
	attack := `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`
	d.instance.Spec.Terminal.AwaitingInput.Patterns = slices.Repeat([]string{attack}, 16)
	d.observe()
	d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonInvalidPattern), "reported before the terminal shows anything")

	d.instance.Spec.Terminal.Columns = ptr.To[int32](1000)
	d.runtime.Show("claude", strings.Repeat(strings.Repeat("x", 1000)+"\n", 20))
	d.advance(stillness)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	for range 100 {
		d.instance.Generation++ // each new generation causes an inspection
		d.observe()
	}
	goruntime.ReadMemStats(&after)
	d.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 64<<20), "bytes in 100 calls")
	wrong := d.condition(v1alpha1.ConditionAwaitingInput)
	d.Expect(wrong.Status).To(Equal(metav1.ConditionUnknown))
	d.Expect(wrong.Reason).To(Equal(v1alpha1.ReasonInvalidPattern))
	d.Expect(wrong.Message).To(And(ContainSubstring("spec.terminal.awaitingInput.patterns[0]"), ContainSubstring("2048")))
	d.Expect(d.observe()).To(BeZero(), "without a change there is no further inspection")
}

// Clients wait for the start of an Instance that rests. An Instance that was stopped, or is being deleted, in its sleep does not start.
func TestBeforeAction_EndsRestOfInstanceThatNoUseStarts(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonStopped, v1alpha1.ReasonDeleting, v1alpha1.ReasonUnknown} {
		t.Run(reason, func(t *testing.T) {
			d := newFixture(t)
			d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
			d.instance.Status.Process = nil
			d.instance.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIdle}}
			d.Expect(d.asleep()).To(BeTrue())
			d.Expect(d.kind.BeforeAction(t.Context(), d.instance, d.instance, lifecycle.Step{}, true)).To(Succeed())
			d.Expect(d.tracker.Resting("claude")).To(BeTrue(), "an Instance that sleeps keeps its rest")
			d.instance.Status.Conditions[0].Reason = reason
			d.Expect(d.kind.BeforeAction(t.Context(), d.instance, d.instance, lifecycle.Step{}, true)).To(Succeed())
			d.Expect(d.tracker.Resting("claude")).To(BeFalse())
		})
	}
}

func TestBeforeAction_EventNamesChildProcesses(t *testing.T) {
	d := newFixture(t)
	recorder := events.NewFakeRecorder(10)
	d.kind.recorder = recorder
	before := d.instance.DeepCopy()
	d.instance.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonIdle}
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, before, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(recorder.Events).To(BeEmpty(), "only the program itself ends")
	d.runtime.Spawn("claude", runtime.Member{PID: 7, Name: "sleep"}, runtime.Member{PID: 9, Name: "node"})
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, before, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(recorder.Events).To(Receive(ContainSubstring("Terminating 2 child processes: sleep (7), node (9).")))
	d.Expect(d.kind.BeforeAction(t.Context(), d.instance, d.instance, lifecycle.Step{}, true)).To(Succeed())
	d.Expect(recorder.Events).To(BeEmpty(), "the event is emitted only once")
	many := make([]runtime.Member, 25)
	d.Expect(strings.Count(ending(many), "(0)")).To(Equal(mostNamed))
	d.Expect(ending(many)).To(HaveSuffix(", 5 more."))
}

// An unused Instance is put to sleep after its timeout, and a used one is not, whichever way the clock is set. Input that follows a step counts.
func TestActivity_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		d := newFixture(t)
		wall := elapsedtest.New(morning)
		d.kind.clock = elapsed.New(wall)
		advance := func(by time.Duration) {
			wall.Step(by)
			d.clock.SetTime(wall.Now())
		}
		d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](300)
		d.runtime.Show("claude", "hello")
		advance(2 * time.Minute)
		d.Expect(d.observe()).To(Equal(3 * time.Minute))
		wall.Set(step)
		advance(3*time.Minute - time.Second)
		d.Expect(d.asleep()).To(BeFalse(), "step %s", step)
		d.Expect(d.observe()).To(Equal(time.Second), "step %s", step)

		d.runtime.Show("claude", "Continue? (y/n) ")
		advance(time.Minute)
		d.Expect(d.asleep()).To(BeFalse())
		d.Expect(d.observe()).To(Equal(4 * time.Minute))
		d.Expect(d.reason(v1alpha1.ConditionAwaitingInput)).To(Equal(v1alpha1.ReasonAwaitingInput), "step %s", step)
		d.Expect(d.instance.Status.LastActivityTime.Time).To(Equal(d.clock.Now().Add(-time.Minute)), "the activity after the step is recorded")
		advance(4*time.Minute - time.Second)
		d.Expect(d.asleep()).To(BeFalse(), "step %s", step)
		advance(time.Second)
		d.Expect(d.asleep()).To(BeTrue(), "step %s", step)
	}
}
