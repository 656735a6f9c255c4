// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// tree is a plan with its phases, attempts and runs.
type tree struct {
	plan *v1alpha1.Plan
	runs map[string]*leaf
}

// leaf describes one run of a plan.
type leaf struct {
	name, strategy string
	phase          v1alpha1.PlanPhase
	attempt        int32
	// word is the outcome of the run or, before the run has ended, its state. message explains the state.
	word, message string
	// result is the summary or the problem that the run reported.
	result string
	// created has a resolution of one second. started is zero for a run that has not started.
	created, started, finished time.Time
}

// newTree combines the records in the plan with the status of its runs. A record remains after its run was deleted, but only a run has timestamps.
func newTree(plan *v1alpha1.Plan, runs []v1alpha1.StrategyRun) *tree {
	t := &tree{plan: plan, runs: map[string]*leaf{}}
	for i := range runs {
		found := leafOf(&runs[i])
		t.runs[found.name] = found
	}
	for _, result := range plan.Status.Results {
		t.add(result.Run, result.Strategy, result.Phase, result.Attempt, string(result.Outcome), result.Message, result.Result)
	}
	for _, run := range plan.Status.Runs {
		t.add(run.Name, run.Strategy, plan.Status.CurrentPhase, plan.Status.Attempt, string(run.Outcome), run.Message, run.Result)
	}
	return t
}

// add adds the outcome that is stored in the plan. This outcome takes precedence over the status of the run.
func (t *tree) add(name, strategy string, phase v1alpha1.PlanPhase, attempt int32, outcome, message string, result *v1alpha1.RunResult) {
	known := t.runs[name]
	if known == nil {
		known = &leaf{name: name, word: v1alpha1.ReasonPending}
		t.runs[name] = known
	}
	known.strategy, known.phase, known.attempt = strategy, phase, attempt
	if outcome != "" {
		known.word, known.message, known.result = outcome, message, said(result)
	}
}

func leafOf(run *v1alpha1.StrategyRun) *leaf {
	found := &leaf{name: run.Name, strategy: run.Spec.StrategyRef.Name, word: v1alpha1.ReasonPending, created: run.CreationTimestamp.Time}
	for _, argument := range run.Spec.Arguments {
		switch argument.Name {
		case "phase":
			found.phase = v1alpha1.PlanPhase(argument.Value)
		case "attempt":
			attempt, _ := strconv.ParseInt(argument.Value, 10, 32) // an unknown attempt is shown as 0
			found.attempt = int32(attempt)
		}
	}
	if run.Status.StartTime != nil {
		found.started = run.Status.StartTime.Time
	}
	if process := run.Status.Process; process != nil && process.StartTime != nil {
		found.started, found.word = process.StartTime.Time, running
	}
	found.result = said(run.Status.Result)
	ready := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case run.Status.Outcome != "":
		found.word = string(run.Status.Outcome)
		if succeeded := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionSucceeded); succeeded != nil {
			found.message = succeeded.Message
		}
	case ready != nil && found.word != running:
		found.word, found.message = ready.Reason, ready.Message
	}
	if run.Status.FinishTime != nil {
		found.finished = run.Status.FinishTime.Time
	}
	return found
}

// running is the state that is shown for a run whose process is running.
const running = v1alpha1.ReasonRunning

// took returns how long the run took, or has taken so far. If the start time of the run is unknown, took counts from the creation of the run.
func (l *leaf) took(now time.Time) string {
	end := l.finished
	if end.IsZero() && l.word == running {
		end = now
	}
	switch {
	case end.IsZero():
		return ""
	case !l.started.IsZero():
		return briefly(end.Sub(l.started))
	case !l.created.IsZero():
		return duration.HumanDuration(max(0, end.Sub(l.created)))
	default:
		return ""
	}
}

func briefly(d time.Duration) string {
	if d = max(d, 0); d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return duration.HumanDuration(d)
}

// attempts returns the runs of a phase by attempt.
func (t *tree) attempts(phase v1alpha1.PlanPhase) map[int32][]*leaf {
	found := map[int32][]*leaf{}
	for _, l := range t.runs {
		if l.phase == phase {
			found[l.attempt] = append(found[l.attempt], l)
		}
	}
	for _, leaves := range found {
		slices.SortFunc(leaves, func(a, b *leaf) int {
			return cmp.Or(cmp.Compare(index(a.name), index(b.name)), cmp.Compare(a.name, b.name))
		})
	}
	return found
}

// index returns the number at the end of the name of a run: its position in the phase.
func index(name string) int {
	number, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]) // a name without a number sorts first
	return number
}

// node is a line of the tree, as cells, and the nodes below it.
type node struct {
	cells []string
	below []*node
}

// lines returns the plan as lines of text.
func (t *tree) lines(now time.Time) []string {
	head := []string{fmt.Sprintf("plan/%s   action %s: %s", t.plan.Name, t.plan.Spec.ActionRef.Name, brief(t.plan))}
	for _, line := range remarks(t.plan) {
		head = append(head, "  "+clean(line))
	}
	var cells [][]string
	phases := t.phases(now)
	for i, phase := range phases {
		cells = append(cells, flatten(phase, "", i == len(phases)-1)...)
	}
	if len(cells) == 0 {
		return head
	}
	return append(head, align(cells)...)
}

// flatten returns the lines of a node and of the nodes below it, as cells. The first cell of each line begins with the branches of the tree.
func flatten(n *node, prefix string, last bool) [][]string {
	branch, more := "├─ ", "│  "
	if last {
		branch, more = "└─ ", "   "
	}
	line := slices.Clone(n.cells)
	line[0] = prefix + branch + line[0]
	drawn := [][]string{line}
	for i, below := range n.below {
		drawn = append(drawn, flatten(below, prefix+more, i == len(n.below)-1)...)
	}
	return drawn
}

func (t *tree) phases(now time.Time) []*node {
	var nodes []*node
	if t.plan.Status.Pinned == nil {
		return nil
	}
	for i := range t.plan.Status.Pinned.Phases {
		pinned := &t.plan.Status.Pinned.Phases[i]
		word, took := t.phase(pinned.Name, now)
		n := &node{cells: []string{string(pinned.Name), word, took, ""}}
		attempts := t.attempts(pinned.Name)
		for _, attempt := range slices.Sorted(maps.Keys(attempts)) {
			into := n
			if t.plan.Status.Attempt > 1 {
				into = &node{cells: []string{fmt.Sprintf("attempt %d", attempt), "", "", ""}}
				n.below = append(n.below, into)
			}
			for _, l := range attempts[attempt] {
				into.below = append(into.below, &node{cells: []string{clean(l.strategy), l.word, l.took(now), remark(l)}})
			}
		}
		if len(attempts) == 0 {
			for _, strategy := range pinned.Strategies {
				n.below = append(n.below, &node{cells: []string{clean(strategy.Name), "", "", ""}})
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// said returns the summary of a result, or else its problem.
func said(result *v1alpha1.RunResult) string {
	if result == nil {
		return ""
	}
	return cmp.Or(result.Summary, result.Problem)
}

// longestRemark is how many characters of a result are shown in a line of the tree.
const longestRemark = 80

// remark returns the result of a successful run. For a failed run it returns the cause and the command that prints the output.
func remark(l *leaf) string {
	result := []rune(clean(l.result))
	if len(result) > longestRemark {
		result = append(result[:longestRemark-1], '…')
	}
	switch v1alpha1.RunOutcome(l.word) {
	case v1alpha1.OutcomeSucceeded:
		return string(result)
	case v1alpha1.OutcomeFailed, v1alpha1.OutcomeTimedOut:
		parts := []string{strings.TrimSuffix(clean(l.message), "."), string(result), "berth logs strategyrun/" + l.name}
		return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
	default:
		return clean(l.message)
	}
}

// phase returns the state and the duration of a phase. The duration counts from the last start of the phase to its end, or to now.
func (t *tree) phase(phase v1alpha1.PlanPhase, now time.Time) (word, took string) {
	s := &t.plan.Status
	switch {
	case phase == s.CurrentPhase:
		word = string(s.State)
	case slices.Contains(s.Completed, phase):
		word = string(v1alpha1.PlanComplete)
	default:
		return "", ""
	}
	var began, over time.Time
	for _, entry := range s.History {
		switch {
		case entry.Phase != phase:
		case entry.State == v1alpha1.PlanProcessing:
			began, over = entry.Time.Time, time.Time{}
		case over.IsZero():
			over = entry.Time.Time
		}
	}
	switch {
	case began.IsZero():
		return word, ""
	case over.IsZero():
		over = now
	}
	return word, briefly(over.Sub(began))
}

// tell prints a line for each change since the last call.
func (t *tree) tell(b *statusTable, now time.Time) {
	b.line("plan", "plan/"+t.plan.Name+" "+brief(t.plan), now)
	for _, name := range slices.Sorted(maps.Keys(t.runs)) {
		l := t.runs[name]
		text := fmt.Sprintf("%s %s %s", l.phase, clean(l.strategy), l.word)
		if why := remark(l); why != "" {
			text += " (" + why + ")"
		}
		if l.attempt > 1 {
			text = fmt.Sprintf("attempt %d: %s", l.attempt, text)
		}
		b.line(name, text, now)
	}
}
