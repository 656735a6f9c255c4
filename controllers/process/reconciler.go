// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// Recorder emits events.
type Recorder interface {
	Eventf(regarding, related apiruntime.Object, eventType, reason, action, note string, args ...any)
}

// Reconciler reconciles the objects of one process kind.
type Reconciler struct {
	// Client reads from the cache and writes to the API server.
	Client client.Client
	// Reader reads from the API server, not the cache.
	Reader client.Reader
	// Runtimes are the backends that run processes.
	Runtimes *runtime.Registry
	// Kind implements what is specific to the kind of the objects.
	Kind Kind
	// Recorder emits events.
	Recorder Recorder
	// Clock returns the time.
	Clock clock.PassiveClock
	// Hosts holds what the manager knows about its own host and the other hosts; nil if there is only this manager.
	Hosts *hosts.Hosts
	// Restarts limits restarts after failures across all objects; nil means no limit.
	Restarts *Restarts
	// Permission is checked before each start on this machine; nil permits every start.
	Permission *Permission
	// OnVanished is called with the UID of a vanished object whose process may still run, so that the process is stopped; nil if nothing stops it.
	OnVanished func(types.UID)

	stateCache stateCache
}

// staleRequeue is how long to wait after a stale read. It is longer than consistency.RetryAfter, because it is also the wait for an older incarnation to
// exit.
const staleRequeue = 50 * time.Millisecond

// scope holds what one reconcile knows about its object.
type scope struct {
	object Object
	// resolved is the process spec if it comes from another object; otherwise nil. Use the method spec.
	resolved *v1alpha1.ProcessSpec
	// base is the object before this reconcile changes its status.
	base Object
	now  time.Time
	// timeline converts recorded times to elapsed time.
	timeline elapsed.Timeline

	want lifecycle.DesiredState
	// hosted is the host of the object. take reports that the label of this host must be written before anything else. move reports that the object must be
	// released to another host.
	hosted     lifecycle.Hosted
	take, move bool
	traits     Traits
	// runtime is the backend of the object. orphan reports that the process keeps running when the object is deleted or moves to another host.
	runtime runtime.Runtime
	orphan  bool
	// reserves reports that the next incarnation is reserved, so that it may be pre-started.
	reserves bool
	// found is what the runtime reports for this UID. current is the recorded or pre-started incarnation, if it is alive.
	found   []facts.Incarnation
	current *facts.Incarnation

	start StartSpec
	// environment is the environment of the spec. command and resumeCommand are argv before its variables are expanded.
	environment            []variable
	command, resumeCommand []string
	// hash and resumeHash are the fingerprints of the spec and of its resumeCommand.
	hash, resumeHash string

	observed lifecycle.Observed
	step     lifecycle.Step

	// unavailable is why the runtime could not observe a new object; empty if it could.
	unavailable string
	// didPreStart reports that this reconcile pre-started an incarnation, which the next reconcile records.
	didPreStart bool
	// written reports that the API server has acknowledged a status in this reconcile.
	written bool
	// retries holds the delays after which the steps of this reconcile requested another check.
	retries []time.Duration
}

// spec returns the process spec of the object.
func (v *scope) spec() *v1alpha1.ProcessSpec {
	if v.resolved != nil {
		return v.resolved
	}
	return v.object.GetProcessSpec()
}

// Reconcile advances one object by one step: observe, decide, write, and only then act. Only a pre-start acts before the write.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object, err := r.read(ctx, req)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.noticeVanished(ctx, req.NamespacedName, object)
	if object == nil || !object.GetDeletionTimestamp().IsZero() && !controllerutil.ContainsFinalizer(object, v1alpha1.FinalizerProcess) {
		return ctrl.Result{}, nil // deleted, or kept only by finalizers of other controllers
	}
	r.stateCache.meet(req.NamespacedName, object.GetUID())
	v, err := r.begin(ctx, object)
	if err != nil {
		return ctrl.Result{}, err
	}
	if leave, result, err := r.checkHost(ctx, v); leave || err != nil {
		if errors.Is(err, consistency.ErrStale) {
			return ctrl.Result{RequeueAfter: staleRequeue}, nil
		}
		return result, err
	}
	if object.GetProcessStatus().Incarnation != 0 {
		r.stateCache.setRuntime(object, v.runtime)
	}
	v.want = r.want(ctx, v)
	v.reserves = reserves(v)
	steps := []func(context.Context, *scope) error{
		r.writeMetadata, r.observe, r.prepare, r.observeKind, r.decide, r.derive, r.preStart, r.write, r.act, r.release, r.expire,
	}
	for _, step := range steps {
		err := step(ctx, v)
		if errors.Is(err, consistency.ErrStale) {
			return ctrl.Result{RequeueAfter: staleRequeue}, nil
		}
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("%s: %w", name(r.Kind, object), err)
		}
		if v.didPreStart {
			break
		}
	}
	r.stateCache.clearFailure(object.GetUID())
	return ctrl.Result{RequeueAfter: Soonest(v.retries...)}, nil
}

// begin resolves the spec of the object and determines its runtime.
func (r *Reconciler) begin(ctx context.Context, object Object) (*scope, error) {
	now, timeline := elapsed.Read(r.Clock)
	v := &scope{object: object, now: now.Truncate(time.Microsecond), timeline: timeline}
	if resolver, resolves := r.Kind.(SpecResolver); resolves {
		spec, err := resolver.ResolveSpec(ctx, object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name(r.Kind, object), err)
		}
		v.resolved = spec
	}
	v.traits = r.Kind.Traits(object)
	v.runtime = r.Runtimes.For(v.traits.Runtime)
	v.runtime.SetNamespace(object.GetUID(), object.GetNamespace()) // before the first call for this UID
	return v, nil
}

// read returns the object, or nil if it does not exist. If the cache does not contain the last write of this manager, read bypasses the cache.
func (r *Reconciler) read(ctx context.Context, req ctrl.Request) (Object, error) {
	object := r.Kind.New()
	err := r.Client.Get(ctx, req.NamespacedName, object)
	if err == nil && r.stateCache.writes.Behind(object) {
		object = r.Kind.New()
		err = r.Reader.Get(ctx, req.NamespacedName, object)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil // a missing object is not an error; the caller checks for nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", r.Kind.Resource(), req, err)
	}
	return object, nil
}

// writeMetadata writes the finalizer before anything is started, so that no process can outlive its object unnoticed. In the same write it copies the session of
// the spec to a label, sets the host label of an object that this host takes, and marks an object that must not be executed again after a restore.
func (r *Reconciler) writeMetadata(ctx context.Context, v *scope) error {
	defer func() { v.base = copyOf(v.object) }()
	session := v.spec().Session
	labelled := session == "" || v.object.GetLabels()[v1alpha1.LabelSession] == session
	claimed := controllerutil.ContainsFinalizer(v.object, v1alpha1.FinalizerProcess)
	marked := !v.traits.Marked || v.object.GetAnnotations()[v1alpha1.AnnotationUID] != ""
	if v.want == lifecycle.DesiredDeleted && !v.take || labelled && claimed && marked && !v.take {
		return nil
	}
	before := copyOf(v.object)
	if !marked {
		Mark(v.object)
	}
	v.addFinalizers(claimed)
	if !labelled {
		setLabel(v.object, v1alpha1.LabelSession, session)
	}
	if v.take {
		setLabel(v.object, v1alpha1.LabelHost, v.hosted.Host)
		if annotations := v.object.GetAnnotations(); annotations[v1alpha1.AnnotationLostHost] == v.hosted.Host {
			delete(annotations, v1alpha1.AnnotationLostHost)
			v.object.SetAnnotations(annotations)
		}
	}
	if err := consistency.Patch(ctx, r.Client, before, v.object, "write finalizers and labels"); err != nil {
		return err
	}
	r.stateCache.writes.Record(v.object)
	return nil
}

// addFinalizers adds the finalizers of the object, unless it is being deleted. claimed reports whether it has the process finalizer already; it then had the others
// too, and another controller may have removed them.
func (v *scope) addFinalizers(claimed bool) {
	if v.want == lifecycle.DesiredDeleted || claimed {
		return
	}
	for _, finalizer := range append([]string{v1alpha1.FinalizerProcess}, v.traits.Finalizers...) {
		controllerutil.AddFinalizer(v.object, finalizer)
	}
}

func setLabel(object Object, name, value string) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[name] = value
	object.SetLabels(labels)
}

// want returns the desired state of the process.
func (r *Reconciler) want(ctx context.Context, v *scope) lifecycle.DesiredState {
	object := v.object
	switch {
	case !object.GetDeletionTimestamp().IsZero():
		return lifecycle.DesiredDeleted
	case v.move:
		return lifecycle.DesiredMoved
	case v.spec().State == v1alpha1.StateStopped:
		return lifecycle.DesiredStopped
	case r.Kind.Asleep(ctx, object, v.now):
		return lifecycle.DesiredAsleep
	default:
		return lifecycle.DesiredRunning
	}
}

// name returns the display name of the object, such as devservers/default/web.
func name(kind Kind, object Object) string {
	return kind.Resource() + "/" + object.GetNamespace() + "/" + object.GetName()
}

func copyOf(object Object) Object {
	return object.DeepCopyObject().(Object) // a copy has the type of its original
}

// Soonest returns the shortest duration above 0; 0 if there is none.
func Soonest(times ...time.Duration) time.Duration {
	var shortest time.Duration
	for _, t := range times {
		if t > 0 && (shortest == 0 || t < shortest) {
			shortest = t
		}
	}
	return shortest
}
