// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// hostRetry is how soon to check again whether the host of an object reports.
	hostRetry = 15 * time.Second
	// firstHostRetry replaces hostRetry while the Leases of the other hosts have not been read.
	firstHostRetry = time.Second
)

// checkHost decides whether this manager reconciles the object. If not, leave is true, and the reconcile ends with result.
func (r *Reconciler) checkHost(ctx context.Context, v *scope) (leave bool, result ctrl.Result, err error) {
	if r.Hosts == nil {
		return false, ctrl.Result{}, nil
	}
	if served, known := r.servedElsewhere(v); served || !known {
		return true, ctrl.Result{RequeueAfter: retryHost(known)}, nil
	}
	if v.traits.Runtime == v1alpha1.RuntimePod {
		return false, ctrl.Result{}, nil
	}
	claim := lifecycle.HostClaim{
		Self: r.Hosts.Self(), Label: v.object.GetLabels()[v1alpha1.LabelHost], Lost: v.object.GetAnnotations()[v1alpha1.AnnotationLostHost],
		Holder: v.object.GetProcessStatus().HostName,
	}
	v.hosted = lifecycle.Hosted{Host: claim.Self, MoveTo: claim.Label}
	switch claim.Decide() {
	case lifecycle.HostTake:
		v.take = true
	case lifecycle.HostMove:
		v.move = true
	case lifecycle.HostLeave:
		result, err = r.leave(ctx, v, claim.Owner())
		return true, result, err
	case lifecycle.HostServe:
	}
	return false, ctrl.Result{}, nil
}

// servedElsewhere reports whether this manager lacks the runtime of the object and another manager serves that runtime. known is false while the Leases have
// not been read.
func (r *Reconciler) servedElsewhere(v *scope) (served, known bool) {
	if disabled(v.runtime) == nil {
		return false, true
	}
	kind := v.traits.Runtime
	if kind == "" {
		kind = v1alpha1.RuntimeHost
	}
	return r.Hosts.Served(kind)
}

// leave ends the reconcile of an object that belongs to another host. If that host does not report, leave sets the reason HostUnavailable.
func (r *Reconciler) leave(ctx context.Context, v *scope, owner string) (ctrl.Result, error) {
	r.dropMemory(client.ObjectKeyFromObject(v.object), "")
	reports, known := r.Hosts.Reports(owner)
	if reports || !known {
		return ctrl.Result{RequeueAfter: retryHost(known)}, nil
	}
	base := copyOf(v.object)
	*v.object.GetProcessStatus() = lifecycle.HostUnavailable(*v.object.GetProcessStatus(), owner, v.object.GetGeneration(), metav1.NewTime(v.now.Truncate(time.Second)))
	if _, err := consistency.WriteStatus(ctx, r.Client, base, v.object); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: hostRetry}, nil
}

func retryHost(known bool) time.Duration {
	if known {
		return hostRetry
	}
	return firstHostRetry
}

// disabled returns why this manager starts nothing in a runtime, or nil if the runtime is available.
func disabled(backend runtime.Runtime) *lifecycle.Blocked {
	why := backend.Capabilities().Disabled
	if why == "" {
		return nil
	}
	return &lifecycle.Blocked{Reason: v1alpha1.ReasonRuntimeUnavailable, Message: why}
}
