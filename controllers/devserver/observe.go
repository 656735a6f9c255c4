// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// The sockets are checked every lookStarting while a server starts, every lookSlow once it has been starting for startingTime, and every lookSettled while it
	// is Ready. With many servers the last interval is longer, so that there is one check per lookPace in total, because checks of unchanged servers should cost
	// next to nothing. An exit is noticed without these checks, because the runtime reports it.
	lookStarting = 100 * time.Millisecond
	lookSlow     = time.Second
	lookSettled  = 5 * time.Second
	lookPace     = 50 * time.Millisecond
	startingTime = time.Minute

	// settleTime is how long a server may take, after it opens its first socket, to open the port that it was given or to print its URL.
	settleTime = 3 * time.Second

	// returnTime is how long a server that was Ready may close the port of status.url, for example to reload itself, before Berth chooses another of its
	// ports. The proxy holds requests for the same time.
	returnTime = 30 * time.Second

	maxObservedPorts = 16
)

// socketSnapshot is the result of one check of an incarnation.
type socketSnapshot struct {
	listeners []runtime.Listener
	// blind is why the sockets could not be read; empty if they could.
	blind string
	// port is the port for status.url; 0 while there is none.
	port int32
	// awaited is the previously chosen port while it is closed and the server may still open it again; otherwise 0.
	awaited int32
	// settled reports that the check no longer waits for a better port or URL.
	settled bool
	// wasReady reports that the status records this incarnation as Ready, from an earlier check or an earlier manager.
	wasReady bool
}

// ObserveRunning implements process.Kind: it determines where the server listens, its URL, and its readiness and liveness.
func (k *Kind) ObserveRunning(ctx context.Context, object process.Object, current facts.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	dev := devServer(object)
	m := k.cacheOf(dev.UID)
	entered := k.enter(dev.UID, m, current.Number)
	s := k.readSockets(ctx, dev, m, current)
	if entered && s.wasReady {
		m.chosen = k.sofar(dev, m) // an earlier manager chose the port
	}
	m.proven = m.proven || s.wasReady
	if len(s.listeners) > 0 && m.listeningSince.IsZero() {
		m.listeningSince = k.clock.Now()
	}
	s.settled = !m.listeningSince.IsZero() && k.clock.Since(m.listeningSince) >= settleTime
	k.hosts(ctx, m, &s)
	urls := k.urls(dev, m, current.Number)
	k.choosePort(dev, m, &s, urls)
	unheld := k.listenAgain(ctx, dev)
	if s.blind == "" && !inPod(dev) {
		k.observePorts(dev, &s)
	}
	k.observeURL(ctx, dev, m, &s, urls)
	k.readEnough(dev, m, current.Number, &s, urls)
	k.aim(dev, m, &s)
	k.readiness(dev, m, current.Number, &s, observed)
	k.liveness(dev, m, current.Number, observed)
	k.observePod(dev, observed)
	k.route(dev, m, &s, unheld, observed)
	return k.again(m, &s, current, observed), nil
}

func (k *Kind) listeners(ctx context.Context, dev *v1alpha1.DevServer) ([]runtime.Listener, error) {
	if k.inspector == nil {
		return nil, errors.ErrUnsupported
	}
	return k.inspector.Listeners(ctx, dev.UID)
}

// readSockets lists the sockets of the object's own processes. If the backend cannot list sockets, readSockets assumes that the server listens on the port that
// it was given.
func (k *Kind) readSockets(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, current facts.Incarnation) socketSnapshot {
	s := socketSnapshot{wasReady: meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady)}
	if inPod(dev) {
		s.seePod(dev, m, current)
		return s
	}
	listeners, err := k.listeners(ctx, dev)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		s.listeners = []runtime.Listener{{Address: "127.0.0.1", Port: assigned(dev).own()}}
	case errors.Is(err, runtime.ErrNotFound): // the process has just exited; the next reconcile records the exit
	case err != nil:
		if !m.blind {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list the listening sockets of a DevServer")
		}
		s.blind = "Cannot read the listening sockets of the server; see the log of the manager."
	default:
		s.listeners = listeners
	}
	m.blind = s.blind != ""
	return s
}

// again returns how long to wait before the next check.
func (k *Kind) again(m *objectCache, s *socketSnapshot, current facts.Incarnation, observed *lifecycle.Observed) time.Duration {
	ready := observed.Ready != nil && *observed.Ready
	switch {
	case !ready && k.clock.Since(current.StartedAt) >= startingTime:
		return lookSlow
	case !ready:
		return lookStarting
	case !s.settled && !m.listeningSince.IsZero():
		return max(lookStarting, settleTime-k.clock.Since(m.listeningSince))
	default:
		return k.rarely()
	}
}

// rarely returns how long to wait before the next check of a Ready server.
func (k *Kind) rarely() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(lookSettled, time.Duration(len(k.memories))*lookPace)
}

// ObserveStopped implements process.Kind: it clears the parts of the status that describe a running process. status.url stays, because a server that restarts
// uses it again.
func (k *Kind) ObserveStopped(ctx context.Context, object process.Object) {
	dev := devServer(object)
	k.probes.Forget(dev.UID)
	dev.Status.ObservedPorts = nil
	meta.RemoveStatusCondition(&dev.Status.Conditions, v1alpha1.ConditionPortVerified)
	meta.RemoveStatusCondition(&dev.Status.Conditions, v1alpha1.ConditionURLDetected)
	k.cacheOf(dev.UID).incarnation = 0
	if !proxied(dev) && !arbitration.Live(dev) {
		dev.Status.BackendPort = 0 // a backend port without a proxy is obsolete
	}
	if !arbitration.Wants(dev) {
		k.release(dev.UID)
		k.ownAtRest(ctx, dev)
	}
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

// choosePort chooses the port of status.url. Behind a proxy it is the port that the proxy forwards to.
func (k *Kind) choosePort(dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot, urls []found) {
	if s.blind != "" {
		return
	}
	c := choice{listening: s.ports(), given: assigned(dev).own(), printed: urls, settled: s.settled}
	if m.proven {
		c.chosen = m.chosen
	}
	if m.absentSince.IsZero() {
		m.absentSince = k.clock.Now()
	}
	c.returning = k.clock.Since(m.absentSince) < returnTime
	if s.port, s.awaited = c.port(); s.port != 0 {
		m.chosen, m.absentSince = s.port, time.Time{}
	}
}

// choice holds the inputs for choosing the port of status.url.
type choice struct {
	listening []int32 // ascending
	given     int32   // the value of $(PORT)
	chosen    int32   // the previously chosen port if the incarnation was Ready; otherwise 0
	returning bool    // chosen is open, or has been closed for less than returnTime
	printed   []found // the URLs in the output
	settled   bool    // the server had time to open the given port and to print a URL
}

// port returns the first open port of these: the given port, the previously chosen port, the best-ranked port in the output, the lowest port. While the
// previously chosen port is closed and may open again, it returns 0 and that port as awaited. It returns 0 and 0 if no port can be chosen.
func (c choice) port() (port, awaited int32) {
	printed := slices.DeleteFunc(slices.Clone(c.printed), func(u found) bool { return !slices.Contains(c.listening, u.Port) })
	switch {
	case slices.Contains(c.listening, c.given):
		return c.given, 0
	case slices.Contains(c.listening, c.chosen):
		return c.chosen, 0
	case c.chosen != 0 && c.returning:
		return 0, c.chosen
	case len(printed) > 0:
		return slices.MinFunc(printed, func(a, b found) int { return cmp.Or(a.Rank-b.Rank, int(a.Port-b.Port)) }).Port, 0
	case len(c.listening) > 0 && c.settled:
		return c.listening[0], 0
	}
	return 0, 0
}

// ports returns the ports that the processes listen on, in ascending order.
func (s *socketSnapshot) ports() []int32 {
	ports := make([]int32, 0, len(s.listeners))
	for _, listener := range s.listeners {
		ports = append(ports, listener.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// observePorts sets status.observedPorts and the condition PortVerified, which reports whether the server listens on the port that it was given.
func (k *Kind) observePorts(dev *v1alpha1.DevServer, s *socketSnapshot) {
	ports := s.ports()
	shown := ports[:min(len(ports), maxObservedPorts)]
	if !slices.Equal(dev.Status.ObservedPorts, shown) {
		dev.Status.ObservedPorts = shown
	}
	given := assigned(dev).own()
	switch {
	case slices.Contains(ports, given):
		k.set(dev, v1alpha1.ConditionPortVerified, true, v1alpha1.ReasonListening, k.withoutIPv6(dev))
	case len(ports) == 0:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening, fmt.Sprintf("The server does not listen on port %d.", given))
	case s.port == 0:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening,
			fmt.Sprintf("The server listens on %s but not yet on port %d.", list(shown), given))
	default:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonOtherPort,
			fmt.Sprintf("The server listens on %s instead of %d. Pass $(PORT) to the program, with its flag that forbids another port "+
				"(such as --strictPort), or set spec.port to the port that it uses.", list(shown), given))
	}
}

func list(ports []int32) string {
	words := make([]string, len(ports))
	for i, port := range ports {
		words[i] = strconv.Itoa(int(port))
	}
	return strings.Join(words, ", ")
}

func (k *Kind) set(dev *v1alpha1.DevServer, conditionType string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	process.SetCondition(dev, k.clock.Now(), conditionType, value, reason, message)
}
