// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hook"
)

// reports returns a fixture whose agent runs, and a function that reports a state and reconciles.
func reports(t *testing.T) (*fixture, func(hook.Report)) {
	d := newFixture(t)
	d.observe()
	return d, func(r hook.Report) {
		d.advance(time.Second)
		d.kind.reports.Add("claude", 1, r)
		d.observe()
	}
}

func TestAgent_AwaitingInputNamesItsSource(t *testing.T) {
	d, report := reports(t)
	report(hook.Report{State: v1alpha1.AgentWaiting, Question: "permission", SessionID: "s1"})
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput)).To(And(
		HaveField("Status", metav1.ConditionTrue), HaveField("Message", "A hook of the agent reports a question (permission).")))
	d.Expect(d.instance.Status.Agent).To(And(HaveField("Source", v1alpha1.AgentSourceHook), HaveField("SessionID", "s1"), HaveField("Question", "permission")))

	d.advance(time.Second)
	d.tracker.Touch("claude")
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "input contradicts the report")
	d.Expect(d.instance.Status.Agent).To(Equal(&v1alpha1.AgentStatus{Incarnation: 1, SessionID: "s1"}))

	d.runtime.Show("claude", "Continue? [y/N]")
	d.advance(stillness)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Message).To(HavePrefix("The terminal shows a question ("))
	d.Expect(d.instance.Status.Agent).To(And(HaveField("State", v1alpha1.AgentWaiting), HaveField("Source", v1alpha1.AgentSourceScreen), HaveField("SessionID", "s1")))

	report(hook.Report{State: v1alpha1.AgentDone})
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the agent has said that it is done, so the screen shows its answer")
	d.Expect(d.instance.Status.Agent.State).To(Equal(v1alpha1.AgentDone))
}

func TestAgent_QuestionOfAHookIsNotWrittenAgain(t *testing.T) {
	d, report := reports(t)
	report(hook.Report{State: v1alpha1.AgentWaiting, Question: "plan"})
	before := d.instance.DeepCopy()
	for range 20 {
		d.advance(time.Second)
		d.runtime.Show("claude", "a dialog that blinks")
		d.observe()
		before.Status.LastActivityTime = d.instance.Status.LastActivityTime
	}
	report(hook.Report{State: v1alpha1.AgentWaiting, Question: "plan"})
	before.Status.LastActivityTime = d.instance.Status.LastActivityTime
	d.Expect(d.instance.Status).To(Equal(before.Status), "neither output nor the same report again changes the status")
}

func TestAgent_QuestionOfAHookOutlivesTheManager(t *testing.T) {
	d, report := reports(t)
	report(hook.Report{State: v1alpha1.AgentWaiting, Question: "permission"})
	before := d.instance.DeepCopy()
	d.kind = New(nil, d.kind.runtimes, d.clock)
	d.kind.present = d.tracker
	d.advance(time.Minute)
	d.observe()
	d.Expect(d.instance.Status.Agent).To(Equal(before.Status.Agent))
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput)).To(HaveField("Status", metav1.ConditionTrue))

	d.tracker.Touch("claude")
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse), "the screen shows no question")
}

func TestAgent_EndsWithItsProcess(t *testing.T) {
	d, report := reports(t)
	report(hook.Report{State: v1alpha1.AgentWorking})
	d.Expect(d.instance.Status.Agent.State).To(Equal(v1alpha1.AgentWorking))
	d.kind.ObserveStopped(d.t.Context(), d.instance)
	d.Expect(d.instance.Status.Agent).To(BeNil())
}

// A flood of reports that alternate causes few changes of the status, and the last report counts in the end.
func TestAgent_FloodOfReportsChangesTheStatusRarely(t *testing.T) {
	d, _ := reports(t)
	woken := 0
	d.kind.reports.OnReport(func(types.UID) { woken++ })
	changes, last := 0, v1alpha1.AgentState("")
	for i := range 1000 { // ten seconds
		d.advance(10 * time.Millisecond)
		r := hook.Report{State: v1alpha1.AgentWorking}
		if i%2 == 1 {
			r = hook.Report{State: v1alpha1.AgentWaiting, Question: "permission"}
		}
		d.kind.reports.Add("claude", 1, r)
		d.observe()
		if state := d.instance.Status.Agent.State; state != last {
			changes, last = changes+1, state
		}
	}
	d.Expect(changes).To(And(BeNumerically(">", 3), BeNumerically("<=", 31)))
	d.Expect(woken).To(BeNumerically("<=", 31), "reports that wait cause no reconciles")
	for again := d.observe(); again > 0 && again < time.Second; again = d.observe() {
		d.advance(again)
	}
	d.Expect(d.instance.Status.Agent).To(HaveField("State", v1alpha1.AgentWaiting))
}

const worksTitle, asksTitle = "\x1b]0;%c project\a", "\x1b]0;[ ! ] Action Required | project\a"

func TestAgent_TitleNamesItsSource(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.advance(time.Second)
	d.runtime.Print("claude", asksTitle)
	d.observe()
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput)).To(And(
		HaveField("Status", metav1.ConditionTrue), HaveField("Message", "The program has told its terminal that it waits (action).")))
	d.Expect(d.instance.Status.Agent).To(And(HaveField("Source", v1alpha1.AgentSourceTerminal), HaveField("State", v1alpha1.AgentWaiting)))

	d.advance(time.Second)
	d.kind.reports.Add("claude", 1, hook.Report{State: v1alpha1.AgentWorking})
	d.observe()
	d.Expect(d.instance.Status.Agent).To(And(HaveField("Source", v1alpha1.AgentSourceHook), HaveField("State", v1alpha1.AgentWorking)), "a hook takes precedence")
	d.Expect(d.condition(v1alpha1.ConditionAwaitingInput).Status).To(Equal(metav1.ConditionFalse))

	d.kind.ObserveStopped(d.t.Context(), d.instance)
	d.Expect(d.instance.Status.Agent).To(BeNil(), "it ends with its process")
}

// A spinner in a title changes ten times a second, for ten minutes. It causes one write, and does not keep the Instance awake.
func TestAgent_SpinnerInATitleWritesOnce(t *testing.T) {
	d := newFixture(t)
	d.instance.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
	d.runtime.Show("claude", "working")
	d.runtime.Reads("claude", facts.Input{Reader: facts.ReaderPoll, Program: "codex"})
	d.advance(stillness)
	d.observe()
	writes, before, slept := 0, d.instance.DeepCopy(), false
	for i := range 6000 {
		d.advance(100 * time.Millisecond)
		d.runtime.Print("claude", fmt.Sprintf(worksTitle, '⠀'+1+rune(i%60)))
		slept = slept || d.asleep()
		d.observe()
		before.Status.Conditions = d.instance.Status.Conditions // Idle becomes True
		if !equality.Semantic.DeepEqual(before.Status, d.instance.Status) {
			writes, before = writes+1, d.instance.DeepCopy()
		}
	}
	d.Expect(d.instance.Status.Agent).To(And(HaveField("State", v1alpha1.AgentWorking), HaveField("Source", v1alpha1.AgentSourceTerminal)))
	d.Expect(writes).To(Equal(1), "writes of status.agent and status.lastActivityTime")
	d.Expect(slept).To(BeTrue(), "a title is no activity")
}

// A program that changes its mind with each title changes the status at most once a second.
func TestAgent_FloodOfTitlesChangesTheStatusRarely(t *testing.T) {
	d := newFixture(t)
	d.observe()
	changes, last := 0, v1alpha1.AgentState("")
	for i := range 1000 { // ten seconds
		d.advance(10 * time.Millisecond)
		title := asksTitle
		if i%3 == 0 {
			title = fmt.Sprintf(worksTitle, '⠹')
		}
		d.runtime.Print("claude", title)
		d.observe()
		if state := d.instance.Status.Agent.State; state != last {
			changes, last = changes+1, state
		}
	}
	d.Expect(changes).To(And(BeNumerically(">", 3), BeNumerically("<=", 11)))
}

// A backend may report the time of an output before it knows the title in it. The title is read again when the terminal has come to rest.
func TestAgent_LastTitleCounts(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.advance(time.Second)
	d.runtime.Print("claude", fmt.Sprintf(worksTitle, '⠹'))
	d.observe()
	d.Expect(d.instance.Status.Agent.State).To(Equal(v1alpha1.AgentWorking))
	d.runtime.Print("claude", asksTitle) // at the same time
	for again := d.observe(); again > 0 && again <= stillness; again = d.observe() {
		d.advance(again)
	}
	d.Expect(d.instance.Status.Agent.State).To(Equal(v1alpha1.AgentWaiting))
}

func TestAgent_AnsweredTitleDoesNotReturnWithANewManager(t *testing.T) {
	d := newFixture(t)
	d.observe()
	d.advance(time.Second)
	d.runtime.Print("claude", asksTitle)
	d.observe()
	d.Expect(d.instance.Status.Agent.State).To(Equal(v1alpha1.AgentWaiting))
	restart := func() {
		d.kind = New(nil, d.kind.runtimes, d.clock)
		d.tracker = activity.New(d.clock)
		d.kind.present = d.tracker
		d.tracker.Rise("claude") // the Instance is reconciled
		d.advance(time.Minute)
		d.observe()
	}
	before := d.instance.DeepCopy()
	restart()
	d.Expect(d.instance.Status.Agent).To(Equal(before.Status.Agent), "the question stands")

	d.advance(time.Second)
	d.tracker.Touch("claude")
	d.observe()
	d.Expect(d.instance.Status.Agent).To(BeNil(), "input since")
	restart()
	d.Expect(d.instance.Status.Agent).To(BeNil(), "the new manager knows nothing of the input")
}
