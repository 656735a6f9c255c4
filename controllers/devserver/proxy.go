// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// frontAddress returns host:port of the proxy of dev; dev must have one. The host is localhost unless another program may answer there: dev servers such as
// Next accept localhost as the origin of a WebSocket, whatever address they listen on.
func (k *Kind) frontAddress(dev *v1alpha1.DevServer) string {
	if k.proxies.IPv6(dev.UID) != nil {
		return join("127.0.0.1", dev.Status.Port)
	}
	return join("localhost", dev.Status.Port)
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
	if ports := assigned(dev); ports.proxied {
		return ports.public
	}
	return port
}

// sofar returns the port of the server that the proxy or, without a proxy, the clients have used so far. It returns 0 if that port is unknown.
func (k *Kind) sofar(dev *v1alpha1.DevServer, m *objectCache) int32 {
	if assigned(dev).proxied {
		return m.aim
	}
	return portOf(dev.Status.URL)
}

// direct returns the URL of the server itself. Without a proxy, and outside of Pods, it is the URL that clients use.
func (k *Kind) direct(dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot) string {
	if !assigned(dev).proxied && !inPod(dev) {
		return dev.Status.URL
	}
	address, err := url.Parse(dev.Status.URL)
	if err != nil {
		return k.backend(dev, m, s.port)
	}
	return k.backend(dev, m, s.port) + address.RequestURI()
}

// backend returns the URL at which the proxy reaches a port of the server. It ignores the scheme of a URL in the output, because any text can appear there.
func (k *Kind) backend(dev *v1alpha1.DevServer, m *objectCache, port int32) string {
	return cmp.Or(dev.Spec.URL.Scheme, "http") + "://" + m.socket(port)
}

// listenAgain makes the proxy of a running server listen on its port again. It does nothing if the server has no proxy.
func (k *Kind) listenAgain(ctx context.Context, dev *v1alpha1.DevServer) error {
	ports := assigned(dev)
	if !ports.proxied {
		return nil
	}
	err := k.listen(dev, ports.public)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("The proxy of a DevServer cannot listen", "port", ports.public, "error", err.Error())
	}
	return err
}

// route sets where the proxy forwards requests. A server is not Ready while its proxy cannot listen on its port, even if the server itself responds.
func (k *Kind) route(dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot, unheld error, observed *lifecycle.Observed) {
	ports := assigned(dev)
	if !ports.proxied {
		return
	}
	if unheld != nil {
		observed.Ready, observed.NotReady = ptr.To(false), fmt.Sprintf("The proxy cannot listen on port %d: %v. Stop the program that uses the port.", ports.public, unheld)
	}
	switch {
	case s.port != 0:
		m.backend = k.backend(dev, m, s.port)
	case m.backend == "" && s.blind != "":
		m.backend = k.backend(dev, m, ports.backend) // the port that the server was given
	}
}

// withoutIPv6 returns a message if the proxy cannot listen on ::1, otherwise "": browsers that try IPv6 first for localhost may reach another program.
func (k *Kind) withoutIPv6(dev *v1alpha1.DevServer) string {
	err := k.proxies.IPv6(dev.UID)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("The proxy listens on 127.0.0.1 but not on [::1]:%d (%v), so localhost may reach another program. Stop that program, or use 127.0.0.1.",
		assigned(dev).public, err)
}

// BeforeAction implements process.ActionObserver: it makes the proxy follow the status. The proxy forwards requests to the Ready incarnation, holds them while
// an incarnation is expected to start, and otherwise refuses them. BeforeAction runs before the process is stopped, so that the proxy sends no request to a
// process that is about to be stopped.
func (k *Kind) BeforeAction(ctx context.Context, object, _ process.Object, step lifecycle.Step, _ bool) error {
	dev := devServer(object)
	if !assigned(dev).proxied {
		k.proxies.Close(dev.UID)
		return nil
	}
	if err := k.listen(dev, dev.Status.Port); err != nil {
		// For an object that should run, the conditions report this; an object at rest does not need the port.
		ctrl.LoggerFrom(ctx).V(1).Info("The proxy of a DevServer cannot listen", "port", dev.Status.Port, "error", err.Error())
		return nil
	}
	if step.Action == lifecycle.StopProcess || step.Action == lifecycle.KillProcess {
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

// startsAt returns when Berth starts a failed server again. It returns the zero time if that is unknown or does not depend on time.
func startsAt(dev *v1alpha1.DevServer) time.Time {
	breaker, wait := dev.Status.Breaker, ptr.Deref(dev.Spec.Breaker.CoolDownSeconds, 0)
	switch {
	case breaker != nil && breaker.State == v1alpha1.BreakerOpen && breaker.OpenedAt != nil && wait > 0:
		return breaker.OpenedAt.Add(time.Duration(wait) * time.Second)
	case dev.Status.NextRestartTime != nil:
		return dev.Status.NextRestartTime.Time
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
