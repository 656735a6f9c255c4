// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/probe"
)

const (
	// The sockets are checked every lookStarting while a server starts, every lookSlow once it has been starting for startingTime, and every lookSettled while
	// it is Ready. With many servers the last interval is longer: in total, Ready servers are checked at most once per lookPace, so that checks of unchanged
	// servers cost little. These checks are not needed to notice an exit, because the runtime reports it.
	lookStarting = 100 * time.Millisecond
	lookSlow     = time.Second
	lookSettled  = 5 * time.Second
	lookPace     = 50 * time.Millisecond
	startingTime = time.Minute
	// adviceTime is how long a server may take to listen before its message contains advice.
	adviceTime = 30 * time.Second

	// settleTime is how long a server may take, after it opens its first socket, to open the port that it was given or to print its URL.
	settleTime = 3 * time.Second

	// returnTime is how long a server that was Ready may close the port of status.url, for example to reload itself, before Berth chooses another port of
	// the server. The proxy holds requests for the same time.
	returnTime = 30 * time.Second

	maxObservedPorts = 16
)

// ObserveRunning implements process.Kind. It collects the facts about the server, decides in a pure function, sets the status and runs the probes.
func (k *Kind) ObserveRunning(ctx context.Context, object process.Object, current facts.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	dev := devServer(object)
	if dev.Status.Incarnation != current.Number { // a pre-started incarnation: the status still describes the previous one
		clearObserved(dev)
	}
	m := k.cacheOf(dev.UID)
	m.takeStart(dev)
	s := k.collect(ctx, dev, m, current)
	d := decide(dev, s)
	m.history = d.history
	k.set(dev, d)
	if d.outputRead {
		k.probes.Stop(probe.Key{UID: dev.UID, Incarnation: current.Number, Kind: output})
	}
	k.probe(dev, m, s, d, current.Number, observed)
	if observed.Contested = d.contested; d.contested != nil {
		observed.Unhealthy = "" // another process may have answered the liveness probe
	}
	k.conclude(dev, s, observed)
	return k.again(s, d, current, observed), nil
}

// set writes the decision to the status.
func (k *Kind) set(dev *v1alpha1.DevServer, d decision) {
	if d.observedPorts != nil && !slices.Equal(dev.Status.ObservedPorts, d.observedPorts) {
		dev.Status.ObservedPorts = d.observedPorts
	}
	dev.Status.URL = d.url
	k.setCondition(dev, v1alpha1.ConditionPortVerified, d.portVerified)
	k.setCondition(dev, v1alpha1.ConditionURLDetected, d.urlDetected)
}

// setCondition sets a condition to a verdict. It does nothing if the verdict is nil.
func (k *Kind) setCondition(dev *v1alpha1.DevServer, conditionType string, v *verdict) {
	if v == nil {
		return
	}
	status := metav1.ConditionFalse
	if v.ok {
		status = metav1.ConditionTrue
	}
	process.SetCondition(dev, k.clock.Now(), conditionType, status, v.reason, v.message)
}

// conclude adds what depends on the results of the probes. It sets the condition PortVerified of a Pod from its readiness, because the sockets of a Pod cannot
// be read. It also makes a server not Ready while its proxy cannot listen on its port, even if the server itself responds.
func (k *Kind) conclude(dev *v1alpha1.DevServer, s snapshot, observed *lifecycle.Observed) {
	if s.remote && observed.Ready != nil { // there is no result yet if the manager has just started
		v := &verdict{ok: *observed.Ready, reason: v1alpha1.ReasonListening}
		if !v.ok {
			v.reason, v.message = v1alpha1.ReasonNotListening, "The Pod does not respond."
		}
		k.setCondition(dev, v1alpha1.ConditionPortVerified, v)
	}
	if s.proxyError != nil {
		observed.Ready = ptr.To(false)
		observed.NotReady = fmt.Sprintf("The proxy cannot listen on port %d: %v. Stop the program that uses the port.", recordedPorts(dev).public, s.proxyError)
	}
}

// again returns how long to wait before the next check.
func (k *Kind) again(s snapshot, d decision, current facts.Incarnation, observed *lifecycle.Observed) time.Duration {
	ready := observed.Ready != nil && *observed.Ready
	switch {
	case !ready && s.now.Sub(s.started) >= startingTime:
		return lookSlow
	case !ready:
		return lookStarting
	case !d.settled && !d.listeningSince.IsZero():
		return max(lookStarting, settleTime-s.now.Sub(d.listeningSince))
	default:
		return k.rarely()
	}
}

// rarely returns how long to wait before the next check of a Ready server.
func (k *Kind) rarely() time.Duration {
	return max(lookSettled, time.Duration(k.memories.Len())*lookPace)
}

// ObserveStopped implements process.Kind: it clears the parts of the status that describe a running process. status.url stays, because a server that restarts
// uses it again.
func (k *Kind) ObserveStopped(ctx context.Context, object process.Object) time.Duration {
	dev := devServer(object)
	k.probes.Forget(dev.UID)
	clearObserved(dev)
	m := k.cacheOf(dev.UID)
	m.incarnation, m.start, m.exec = 0, nil, nil
	if !proxied(dev) && !arbitration.Live(dev) {
		dev.Status.BackendPort = 0 // a backend port without a proxy is obsolete
	}
	if !arbitration.Wants(dev) {
		k.reserved.Release(dev.UID, k.clock.Now())
		k.ownAtRest(ctx, dev)
	}
	return 0
}

// clearObserved removes what the status says about an incarnation that ran.
func clearObserved(dev *v1alpha1.DevServer) {
	dev.Status.ObservedPorts = nil
	meta.RemoveStatusCondition(&dev.Status.Conditions, v1alpha1.ConditionPortVerified)
	meta.RemoveStatusCondition(&dev.Status.Conditions, v1alpha1.ConditionURLDetected)
}

// ownAtRest sets the owner of an object that should not run, so that the object is deleted with its Instance. Prepare, which otherwise sets the owner, is not
// called for stopped objects.
func (k *Kind) ownAtRest(ctx context.Context, dev *v1alpha1.DevServer) {
	if !ownsNothing(dev) {
		return
	}
	if _, err := k.owners.Set(ctx, dev, dev.Spec.InstanceRef); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot set the owner of a stopped DevServer")
	}
}
