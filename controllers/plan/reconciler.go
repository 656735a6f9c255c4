// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan executes plans: it creates and cancels the runs of their phases. internal/plan makes the decisions.
package plan

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/plan"
)

// Reconciler executes Plans.
type Reconciler struct {
	// Client reads from a cache with the indexes of this package, and writes. Reader reads from the API server.
	Client   client.Client
	Reader   client.Reader
	Recorder process.Recorder
	Clock    clock.PassiveClock
	// Hosts holds what the manager knows about its own host and the other hosts; nil if there is only this manager. All runs of a plan are on the host of
	// the plan.
	Hosts *hosts.Hosts

	// beginning is held while a plan with a key begins, from the check of the other plans to the write of the status.
	beginning sync.Mutex
	// Correctness does not depend on these caches. ownRuns contains the runs that this manager created most recently; seen records when the end of a run was first
	// observed.
	writes  consistency.Writes
	ownRuns process.Recent[bool]
	seen    process.FirstObserved
}

const (
	// missingRetry is how soon to check again for an object that a plan needs before it can begin. The creation of that object also triggers a reconcile.
	missingRetry = time.Minute
	// rivalRetry is how soon to check again whether the older plan with the same key has begun.
	rivalRetry = time.Second
)

// +kubebuilder:rbac:groups=berth.dev,resources=plans,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=plans/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=plans/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=actions;strategies,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns,verbs=get;list;watch;create;patch

// scope holds the state of one reconcile of one plan.
type scope struct {
	plan *v1alpha1.Plan
	runs map[string]*v1alpha1.StrategyRun
	now  time.Time
	// timeline converts recorded times to elapsed time.
	timeline elapsed.Timeline

	desired plan.Desired
	step    plan.Step
	// fresh reports that the API server has confirmed in this reconcile that the plan is unchanged since it was read.
	fresh bool
}

// again requests the next reconcile after the given duration, unless an earlier one is already requested.
func (v *scope) again(after time.Duration) {
	if v.step.Requeue == 0 || after < v.step.Requeue {
		v.step.Requeue = after
	}
}

// Reconcile advances one plan: it reads, decides, writes the status, and only then creates, cancels and releases runs.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object, err := consistency.Read[v1alpha1.Plan](ctx, r.Client, r.Reader, &r.writes, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the plan: %w", err)
	}
	if object == nil || !object.DeletionTimestamp.IsZero() {
		waiting.set(req.NamespacedName, false)
		return r.result(req, nil, r.abandon(ctx, req.NamespacedName))
	}
	if serve, err := r.Hosts.Claim(ctx, r.Client, object, markUnmarked); err != nil {
		return r.result(req, nil, consistency.StaleOr(err, "set the host label"))
	} else if !serve {
		waiting.set(req.NamespacedName, false)
		return ctrl.Result{}, nil
	}
	if err := r.mark(ctx, object); err != nil {
		return r.result(req, nil, err)
	}
	now, timeline := elapsed.Read(r.Clock)
	v := &scope{plan: object, now: now.Truncate(time.Microsecond), timeline: timeline}
	for _, step := range []func(context.Context, *scope) error{r.listRuns, r.decide, r.act, r.expire} {
		if err := step(ctx, v); err != nil {
			return r.result(req, v, err)
		}
	}
	return r.result(req, v, nil)
}

// mark records the UID of a plan before the plan is executed, so that a copy of it is recognized.
func (r *Reconciler) mark(ctx context.Context, object *v1alpha1.Plan) error {
	if object.Annotations[v1alpha1.AnnotationUID] != "" || object.Status.FinishTime != nil {
		return nil
	}
	base := object.DeepCopy()
	process.Mark(object)
	if err := consistency.Patch(ctx, r.Client, base, object, "record the UID of the plan in an annotation"); err != nil {
		return err
	}
	r.writes.Record(object)
	return nil
}

// markUnmarked is the change of mark, for a write that also changes something else.
func markUnmarked(object client.Object) {
	if object.GetAnnotations()[v1alpha1.AnnotationUID] == "" {
		process.Mark(object)
	}
}

// result determines when the next reconcile is due.
func (r *Reconciler) result(req ctrl.Request, v *scope, err error) (ctrl.Result, error) {
	switch {
	case err != nil:
		return consistency.Result("plans/"+req.String(), err)
	case v == nil:
		return ctrl.Result{}, nil
	case !v.step.Expires.IsZero():
		v.again(max(v.untilExpired(), time.Millisecond))
		return ctrl.Result{RequeueAfter: v.step.Requeue}, nil
	case v.step.Requeue == 0 && v.desired.Blocked != nil && v.step.Status.DuplicateOf == nil:
		switch v.desired.Blocked.Reason {
		case v1alpha1.ReasonDuplicate:
			return ctrl.Result{RequeueAfter: rivalRetry}, nil
		case v1alpha1.ReasonRestored: // only a user can change that
			return ctrl.Result{}, nil
		}
		return ctrl.Result{RequeueAfter: missingRetry}, nil
	default:
		return ctrl.Result{RequeueAfter: v.step.Requeue}, nil
	}
}

// decide determines the next step and writes the status. A plan with a key begins under a lock, so that the second of two plans with the same key sees the
// result of the first.
func (r *Reconciler) decide(ctx context.Context, v *scope) error {
	if !begun(v.plan) && v.plan.Spec.IdempotencyKey != "" {
		r.beginning.Lock()
		defer r.beginning.Unlock()
	}
	v.desired = desired(v.plan)
	v.desired.Timeline = v.timeline
	if err := r.admit(ctx, v); err != nil {
		return err
	}
	v.step = plan.Next(v.desired, v.plan.Status, r.views(v.plan, v.runs, v.now), v.now)
	if err := r.write(ctx, v); err != nil {
		return err
	}
	waiting.set(client.ObjectKeyFromObject(v.plan), meta.IsStatusConditionTrue(v.plan.Status.Conditions, v1alpha1.ConditionAwaitingApproval))
	return nil
}

// begun reports whether the plan has pinned its action or was cancelled, and therefore no longer needs the action.
func begun(object *v1alpha1.Plan) bool {
	return object.Status.Pinned != nil || object.Status.State == v1alpha1.PlanCancelled
}

func desired(object *v1alpha1.Plan) plan.Desired {
	spec := &object.Spec
	d := plan.Desired{
		Name: object.Name, UID: object.UID, Generation: object.Generation,
		Cancelled: spec.State == v1alpha1.PlanCancelRequested, Target: spec.TargetPhase, Approval: spec.Approval, RetryToken: spec.RetryToken,
	}
	if spec.Revert != nil {
		d.RevertToken, d.RevertReason = spec.Revert.Token, spec.Revert.Reason
	}
	if spec.TTLSecondsAfterFinished != nil {
		ttl := time.Duration(*spec.TTLSecondsAfterFinished) * time.Second
		d.TTL = &ttl
	}
	return d
}

// write writes the status in one patch, which fails if the plan has changed in the meantime, and then emits events.
func (r *Reconciler) write(ctx context.Context, v *scope) error {
	base := v.plan.DeepCopy()
	v.plan.Status = v.step.Status
	if written, err := consistency.WriteStatus(ctx, r.Client, base, v.plan); !written {
		return err
	}
	v.fresh = true
	r.writes.Record(v.plan)
	r.emitEvents(v)
	return nil
}

// longestEvent is the maximum length of an event message that the API server accepts, in bytes.
const longestEvent = 1024

// emitEvents emits one event for each warning of this step, and merges all other events into one, which has the reason of the last of them.
func (r *Reconciler) emitEvents(v *scope) {
	var reason, note string
	for _, event := range v.step.Events {
		if event.Warning {
			r.Recorder.Eventf(v.plan, nil, corev1.EventTypeWarning, event.Reason, "Reconcile", "%s", event.Message)
			continue
		}
		if reason = event.Reason; len(note)+1+len(event.Message) <= longestEvent {
			note = strings.TrimSpace(note + " " + event.Message)
		}
	}
	if reason != "" {
		r.Recorder.Eventf(v.plan, nil, corev1.EventTypeNormal, reason, "Reconcile", "%s", note)
	}
}

// confirm checks that the plan is unchanged since it was read, so that nothing is created or cancelled for a changed or deleted plan. If the plan has
// changed, confirm returns ErrStale.
func (r *Reconciler) confirm(ctx context.Context, v *scope) error {
	if v.fresh {
		return nil
	}
	if err := consistency.Confirm(ctx, r.Reader, v.plan, &v1alpha1.Plan{}); err != nil {
		return err
	}
	v.fresh = true
	return nil
}

// untilExpired returns how long a finished plan with a TTL is still kept.
func (v *scope) untilExpired() time.Duration {
	left, _ := v.timeline.Left(v.step.Expires, *v.desired.TTL, v.now)
	return left
}

// expire deletes a plan that has expired, together with its runs. It deletes only the object and version that it has read.
func (r *Reconciler) expire(ctx context.Context, v *scope) error {
	if v.step.Expires.IsZero() || v.untilExpired() > 0 {
		return nil
	}
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	uid, version := v.plan.UID, v.plan.ResourceVersion
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	err := r.Client.Delete(ctx, v.plan, client.Preconditions{UID: &uid, ResourceVersion: &version}, background)
	if err != nil && !apierrors.IsNotFound(err) {
		return consistency.StaleOr(err, "delete the plan")
	}
	return nil
}
