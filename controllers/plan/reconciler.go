// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan carries plans out: it creates the runs of their phases and ends them; internal/plan decides.
package plan

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/plan"
)

// Reconciler carries out one Plan at a time.
type Reconciler struct {
	// Client reads from a cache with the indexes of this package and writes; Reader reads past the cache.
	Client   client.Client
	Reader   client.Reader
	Recorder process.Recorder
	Clock    clock.PassiveClock
	// Hosts knows this host and the others; nil if the manager is alone. All runs of a plan are on the host of the plan.
	Hosts *hosts.Hosts

	// beginning lets one plan with a key begin at a time, from the look at the others to the write.
	beginning sync.Mutex
	memory    memory
}

const (
	// missingRetry is how soon to look again for what a plan needs to begin; its creation is seen anyway.
	missingRetry = time.Minute
	// rivalRetry is how soon to look again whether the older plan with the same key has begun.
	rivalRetry = time.Second
)

// +kubebuilder:rbac:groups=berth.dev,resources=plans,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=plans/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=plans/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=actions;strategies,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns,verbs=get;list;watch;create;patch

// visit is one reconcile of one plan.
type visit struct {
	plan *v1alpha1.Plan
	runs map[string]*v1alpha1.StrategyRun
	now  time.Time

	desired plan.Desired
	step    plan.Step
	// fresh says that the API server has acknowledged in this reconcile that the plan is as it was read.
	fresh bool
}

// again asks to look again after so long, or sooner.
func (v *visit) again(after time.Duration) {
	if v.step.Requeue == 0 || after < v.step.Requeue {
		v.step.Requeue = after
	}
}

// Reconcile takes one plan further: it reads, decides, writes the status, and only then creates, ends and lets go runs.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if object == nil || !object.DeletionTimestamp.IsZero() {
		return r.result(req, nil, r.abandon(ctx, req.NamespacedName))
	}
	if serve, err := r.Hosts.Claim(ctx, r.Client, object); err != nil {
		return r.result(req, nil, consistency.StaleOr(err, "set the label of this host"))
	} else if !serve {
		return ctrl.Result{}, nil
	}
	v := &visit{plan: object, now: r.Clock.Now().Truncate(time.Microsecond)}
	for _, step := range []func(context.Context, *visit) error{r.look, r.decide, r.act, r.expire} {
		if err := step(ctx, v); err != nil {
			return r.result(req, v, err)
		}
	}
	return r.result(req, v, nil)
}

// result says when to look again.
func (r *Reconciler) result(req ctrl.Request, v *visit, err error) (ctrl.Result, error) {
	switch {
	case errors.Is(err, consistency.ErrStale):
		return ctrl.Result{RequeueAfter: consistency.RetryAfter}, nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("plans/%s: %w", req, err)
	case v == nil:
		return ctrl.Result{}, nil
	case !v.step.Expires.IsZero():
		v.again(max(v.step.Expires.Sub(v.now), time.Millisecond))
		return ctrl.Result{RequeueAfter: v.step.Requeue}, nil
	case v.step.Requeue == 0 && v.desired.Blocked != nil && v.step.Status.DuplicateOf == nil:
		if v.desired.Blocked.Reason == v1alpha1.ReasonDuplicate {
			return ctrl.Result{RequeueAfter: rivalRetry}, nil
		}
		return ctrl.Result{RequeueAfter: missingRetry}, nil
	default:
		return ctrl.Result{RequeueAfter: v.step.Requeue}, nil
	}
}

// read gives the plan, or nil when there is none. The cache is passed by while it has not seen our own last write, and when it knows nothing.
func (r *Reconciler) read(ctx context.Context, key types.NamespacedName) (*v1alpha1.Plan, error) {
	object := &v1alpha1.Plan{}
	err := r.Client.Get(ctx, key, object)
	if err == nil && r.memory.writes.Behind(object) || apierrors.IsNotFound(err) {
		object = &v1alpha1.Plan{}
		err = r.Reader.Get(ctx, key, object)
	}
	if apierrors.IsNotFound(err) {
		r.memory.writes.Forget(key)
		return nil, nil //nolint:nilnil // nothing there is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	return object, nil
}

// decide says what to do and writes the status. A plan with a key begins under a lock, so that of two with the same one sees what the other did.
func (r *Reconciler) decide(ctx context.Context, v *visit) error {
	if !begun(v.plan) && v.plan.Spec.IdempotencyKey != "" {
		r.beginning.Lock()
		defer r.beginning.Unlock()
	}
	v.desired = desired(v.plan)
	if err := r.admit(ctx, v); err != nil {
		return err
	}
	v.step = plan.Next(v.desired, v.plan.Status, r.views(v.plan, v.runs, v.now), v.now)
	return r.write(ctx, v)
}

// begun says that the plan needs nothing more of its action.
func begun(object *v1alpha1.Plan) bool {
	return object.Status.Pinned != nil || object.Status.State == v1alpha1.PlanCancelled
}

func desired(object *v1alpha1.Plan) plan.Desired {
	spec := &object.Spec
	d := plan.Desired{
		Name: object.Name, UID: object.UID, Generation: object.Generation,
		Cancelled: spec.State == v1alpha1.PlanCancelRequested, Target: spec.TargetPhase, RetryToken: spec.RetryToken,
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

// write makes the status true in one patch that fails if the plan has changed meanwhile, and tells events after it.
func (r *Reconciler) write(ctx context.Context, v *visit) error {
	if equality.Semantic.DeepEqual(v.plan.Status, v.step.Status) {
		return nil
	}
	base := v.plan.DeepCopy()
	v.plan.Status = v.step.Status
	err := r.Client.Status().Patch(ctx, v.plan, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return consistency.StaleOr(err, "write the status")
	}
	v.fresh = true
	r.memory.writes.Record(v.plan)
	r.tell(v)
	return nil
}

// longestEvent is what the API server takes, in bytes.
const longestEvent = 1024

// tell tells what went wrong, each by itself, and all else that happened in this step in one event with the reason of the last.
func (r *Reconciler) tell(v *visit) {
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

// confirm makes sure that the plan is as it was read: nothing is created or ended for one that has changed or gone.
func (r *Reconciler) confirm(ctx context.Context, v *visit) error {
	if v.fresh {
		return nil
	}
	if err := consistency.Confirm(ctx, r.Reader, v.plan, &v1alpha1.Plan{}); err != nil {
		return err
	}
	v.fresh = true
	return nil
}

// expire deletes a plan whose time is over, with its runs: only the one that was looked at, as it was.
func (r *Reconciler) expire(ctx context.Context, v *visit) error {
	if v.step.Expires.IsZero() || v.now.Before(v.step.Expires) {
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
