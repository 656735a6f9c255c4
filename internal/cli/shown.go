// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// recentRuns is how many finished runs are shown unless the user specifies the kind strategyrun.
const recentRuns = 10

// strategyKind is the kind Strategy, which has no process. Only the commands that show objects support this kind.
var strategyKind = &kind{
	singular: "strategy", plural: "strategies", short: "strat",
	shown: func() client.Object { return &v1alpha1.Strategy{} },
	list:  func() client.ObjectList { return &v1alpha1.StrategyList{} },
	row: func(object client.Object) row {
		s := object.(*v1alpha1.Strategy)
		r := row{ready: "Unknown", reason: v1alpha1.ReasonPending, restarts: "0", address: totals(s)}
		r.setReady(s.Status.Conditions)
		return r
	},
}

// planKind is the kind Plan, which has no process. berth status prints one line for each plan; berth plan status prints more details.
var planKind = &kind{
	singular: "plan", plural: "plans", short: "plan",
	shown: func() client.Object { return &v1alpha1.Plan{} },
	list:  func() client.ObjectList { return &v1alpha1.PlanList{} },
	row: func(object client.Object) row {
		p := object.(*v1alpha1.Plan)
		r := row{ready: "Unknown", reason: v1alpha1.ReasonPending, restarts: strconv.Itoa(int(max(p.Status.Attempt, 1) - 1))}
		r.address = clean(strings.TrimRight(fmt.Sprintf("action/%s %s", p.Spec.ActionRef.Name, p.Status.CurrentPhase), " "))
		r.setReady(p.Status.Conditions)
		return r
	},
}

// shownKinds returns all kinds that berth status shows.
func shownKinds() []*kind { return append(slices.Clone(kinds), strategyKind, planKind, discoveryKind) }

// findShown returns the kind that word names, like findKind. It also finds the kinds that commands only show.
func findShown(word string) (*kind, error) {
	if kind := kindNamed(shownKinds(), word); kind != nil {
		return kind, nil
	}
	return nil, fmt.Errorf("unknown kind %q: use devserver, instance, languageserver, strategyrun, strategy, plan or instancediscovery", word)
}

// totals summarizes the outcomes of the runs of a strategy.
func totals(s *v1alpha1.Strategy) string {
	t := s.Status.Totals
	text := fmt.Sprintf("%d succeeded, %d failed", t.Succeeded, t.Failed+t.TimedOut)
	if t.Cancelled > 0 {
		text += fmt.Sprintf(", %d cancelled", t.Cancelled)
	}
	if t.SkippedCircuitOpen > 0 {
		text += fmt.Sprintf(", %d skipped", t.SkippedCircuitOpen)
	}
	return text
}

// show returns the row of an object of the kind.
func (k *kind) show(object client.Object) row {
	if k.row == nil {
		return makeRow(k, object.(process.Object))
	}
	r := k.row(object)
	r.host = object.GetLabels()[v1alpha1.LabelHost]
	r.namespace, r.name, r.created = object.GetNamespace(), k.singular+"/"+object.GetName(), object.GetCreationTimestamp().Time
	if object.GetDeletionTimestamp() != nil {
		r.ready, r.reason = "False", v1alpha1.ReasonDeleting
	}
	return r
}

// setReady fills in the row from the condition Ready.
func (r *row) setReady(conditions []metav1.Condition) {
	condition := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if condition == nil {
		return
	}
	r.ready, r.reason = string(condition.Status), clean(condition.Reason)
	atRest := []string{v1alpha1.ReasonStopped, v1alpha1.ReasonCompleted, v1alpha1.ReasonDisabled} // with these reasons, the message explains why nothing runs
	if condition.Status != metav1.ConditionTrue || slices.Contains(atRest, condition.Reason) {
		r.message = clean(condition.Message)
	}
	for _, note := range []string{v1alpha1.ConditionPortVerified, v1alpha1.ConditionAwaitingInput, v1alpha1.ConditionHealthy, v1alpha1.ConditionDriftDetected} {
		if c := meta.FindStatusCondition(conditions, note); c != nil && c.Message != "" && clean(c.Message) != r.message {
			text := fmt.Sprintf("%s=%s: %s", c.Type, c.Status, clean(c.Message))
			if note == v1alpha1.ConditionPortVerified && c.Status == metav1.ConditionFalse && r.message == "" {
				r.message = text // a server on a wrong port is Ready, so lists would not show the problem otherwise
				continue
			}
			r.notes = append(r.notes, text)
		}
	}
}

// shownObject is an object with its kind.
type shownObject struct {
	kind   *kind
	object client.Object
}

func (o shownObject) row() row { return o.kind.show(o.object) }

func objectsOf(shown []shownObject) []client.Object {
	objects := make([]client.Object, 0, len(shown))
	for _, one := range shown {
		objects = append(objects, one.object)
	}
	return objects
}

func rowsOf(objects []shownObject) []row {
	rows := make([]row, 0, len(objects))
	for _, object := range objects {
		rows = append(rows, object.row())
	}
	return rows
}

// listShown returns all objects of a kind. There may be thousands of finished runs, so it includes only the most recent ones unless everything is set.
func listShown(ctx context.Context, reader client.Reader, kind *kind, namespace string, everything bool, opts ...client.ListOption) ([]shownObject, error) {
	objects, err := items(ctx, reader, kind.list(), namespace, opts...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind.plural, err)
	}
	if kind.once && !everything {
		objects = withoutOldRuns(objects)
	}
	shown := make([]shownObject, 0, len(objects))
	for _, object := range objects {
		shown = append(shown, shownObject{kind, object})
	}
	return shown, nil
}

// withoutOldRuns drops all finished runs except the most recent ones.
func withoutOldRuns(objects []client.Object) []client.Object {
	var finished []*v1alpha1.StrategyRun
	for _, object := range objects {
		if run := object.(*v1alpha1.StrategyRun); run.Status.FinishTime != nil {
			finished = append(finished, run)
		}
	}
	if len(finished) <= recentRuns {
		return objects
	}
	slices.SortFunc(finished, func(a, b *v1alpha1.StrategyRun) int {
		return cmp.Or(b.Status.FinishTime.Compare(a.Status.FinishTime.Time), cmp.Compare(a.UID, b.UID))
	})
	old := map[client.Object]bool{}
	for _, run := range finished[recentRuns:] {
		old[run] = true
	}
	return slices.DeleteFunc(objects, func(object client.Object) bool { return old[object] })
}

// getShown reads one object of a kind that berth status shows.
func (c *connection) getShown(ctx context.Context, ref reference) (shownObject, error) {
	if ref.kind.shown == nil {
		object, err := c.get(ctx, ref)
		return shownObject{ref.kind, object}, err
	}
	object := ref.kind.shown()
	return shownObject{ref.kind, object}, c.read(ctx, ref, object)
}
