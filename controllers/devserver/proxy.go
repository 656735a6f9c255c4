// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// proxyHost returns the host at which clients reach the proxy: localhost, because dev servers such as Next accept localhost as the origin of a WebSocket
// whatever address they listen on. If the proxy cannot listen on ::1, another program may answer there, and proxyHost returns 127.0.0.1.
func proxyHost(ipv6Error error) string {
	if ipv6Error != nil {
		return "127.0.0.1"
	}
	return "localhost"
}

func frontName(dev *v1alpha1.DevServer) string {
	return "devservers/" + dev.Namespace + "/" + dev.Name
}

// listen makes the proxy of an object listen on a port. It ignores ErrEnded, which reports that this manager is shutting down, because the next manager listens
// again.
func (k *Kind) listen(dev *v1alpha1.DevServer, port int32) error {
	if err := k.proxies.Listen(dev.UID, frontName(dev), port, dev.Spec.AllowedHosts...); err != nil && !errors.Is(err, devproxy.ErrEnded) {
		return err
	}
	return nil
}

// published returns the port at which clients reach the given port of the server.
func published(dev *v1alpha1.DevServer, port int32) int32 {
	if ports := recordedPorts(dev); ports.proxied {
		return ports.public
	}
	return port
}

// listenAgain makes the proxy of a running server listen on its port again. It does nothing if the server has no proxy.
func (k *Kind) listenAgain(ctx context.Context, dev *v1alpha1.DevServer) error {
	ports := recordedPorts(dev)
	if !ports.proxied {
		return nil
	}
	err := k.listen(dev, ports.public)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("The proxy of a DevServer cannot listen", "port", ports.public, "error", err.Error())
	}
	return err
}

// withoutIPv6 returns a warning if the proxy cannot listen on ::1, because browsers that try IPv6 first for localhost may then reach another program. Otherwise
// it returns "".
func withoutIPv6(dev *v1alpha1.DevServer, ipv6Error error) string {
	if ipv6Error == nil {
		return ""
	}
	return fmt.Sprintf("The proxy listens on 127.0.0.1 but not on [::1]:%d (%v), so localhost may reach another program. Stop that program, or use 127.0.0.1.",
		recordedPorts(dev).public, ipv6Error)
}

// BeforeAction implements process.ActionObserver: it makes the proxy follow the status or, before the status is written, a pre-start. The proxy forwards
// requests to the Ready incarnation, holds them while an incarnation is expected to start, and otherwise refuses them. BeforeAction runs before the process is
// stopped, so that the proxy sends no request to a process that is about to be stopped.
func (k *Kind) BeforeAction(ctx context.Context, object, _ process.Object, step lifecycle.Step, _ bool) error {
	dev := devServer(object)
	if !recordedPorts(dev).proxied {
		k.proxies.Close(dev.UID)
		return nil
	}
	if err := k.listen(dev, dev.Status.Port); err != nil {
		// For an object that should run, the conditions report this error; an object at rest does not need the port.
		ctrl.LoggerFrom(ctx).V(1).Info("The proxy of a DevServer cannot listen", "port", dev.Status.Port, "error", err.Error())
		return nil
	}
	switch {
	case step.PreStart: // the new process may listen on the port before the status shows that it is not ready
		k.proxies.End(dev.UID, step.Incarnation-1)
		k.proxies.Hold(dev.UID, devproxy.Reason{Reason: v1alpha1.ReasonStarting, Message: "The server is starting."})
		return nil
	case step.Action == lifecycle.StopProcess, step.Action == lifecycle.KillProcess:
		k.proxies.End(dev.UID, step.Incarnation)
	}
	ready := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return nil
	}
	m := k.cacheOf(dev.UID)
	reason := devproxy.Reason{Reason: ready.Reason, Message: ready.Message, Until: startsAt(dev)}
	switch {
	case ready.Status == metav1.ConditionTrue && dev.Status.Process != nil:
		k.open(ctx, dev, m)
	case !comes(dev):
		k.proxies.Refuse(dev.UID, reason)
	default:
		k.proxies.Hold(dev.UID, reason)
	}
	return nil
}

// startsAt returns when Berth starts a failed server again, after the back-off or the cool-down of the breaker. It returns the zero time if that is unknown or
// does not depend on time.
func startsAt(dev *v1alpha1.DevServer) time.Time {
	if next := dev.Status.NextRestartTime; next != nil {
		return next.Time
	}
	return time.Time{}
}

// open makes the proxy forward requests to the incarnation in the status, if this manager has checked that incarnation.
func (k *Kind) open(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache) {
	if m.incarnation != dev.Status.Incarnation || m.backend == "" {
		return
	}
	if err := k.proxies.Open(dev.UID, m.incarnation, m.backend); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "The proxy cannot forward requests to the server")
	}
}

// comes reports whether a server that does not run can be expected to start: it should run, and Berth only waits, for example for the end of a back-off.
func comes(dev *v1alpha1.DevServer) bool {
	return dev.Spec.State != v1alpha1.StateStopped && dev.DeletionTimestamp.IsZero() &&
		!meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionStalled) &&
		!meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady) // Ready without a process: the program has ended and is not restarted
}
