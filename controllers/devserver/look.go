// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
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
	"github.com/berth-dev/berth/controllers/claim"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// The sockets are looked at every lookStarting while a server starts, every lookSlow when it has been starting for startingTime, and
	// every lookSettled when it is ready. With many servers it is more rarely, so that there is one look in lookPace altogether: what stays
	// as it is should cost next to nothing. An end is told by the runtime in any case.
	lookStarting = 100 * time.Millisecond
	lookSlow     = time.Second
	lookSettled  = 5 * time.Second
	lookPace     = 50 * time.Millisecond
	startingTime = time.Minute

	// settleTime is how long after its first socket a server may still open the one that it was given, or print where it is to be found.
	settleTime = 3 * time.Second

	maxObservedPorts = 16
)

// sight is what one look at an incarnation has shown.
type sight struct {
	listeners []runtime.Listener
	// blind is why the sockets could not be seen.
	blind string
	// port is the one that the address is made of; 0 while there is none.
	port int32
	// settled says that no better port or address is waited for.
	settled bool
	// wasReady says that it is ready by the record, of this incarnation: that of an earlier look, perhaps of an earlier manager.
	wasReady bool
}

// Look finds out where the server listens, what its address is, and how it is.
func (k *Kind) Look(ctx context.Context, object process.Object, current runtime.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	dev := devServer(object)
	m := k.memory(dev.UID)
	k.enter(dev.UID, m, current.Number)
	s := k.see(ctx, dev, m, current)
	m.proven = m.proven || s.wasReady
	if len(s.listeners) > 0 && m.listeningSince.IsZero() {
		m.listeningSince = k.clock.Now()
	}
	s.settled = !m.listeningSince.IsZero() && k.clock.Since(m.listeningSince) >= settleTime
	k.hosts(ctx, m, &s)
	urls := k.urls(dev, m, current.Number)
	s.choosePort(assigned(dev).own(), k.sofar(dev, m), urls)
	if s.blind == "" && !inPod(dev) {
		k.observePorts(dev, &s)
	}
	k.observeURL(dev, m, &s, urls)
	k.readEnough(dev, m, current.Number, &s, urls)
	k.aim(dev, m, &s)
	k.readiness(dev, m, current.Number, &s, observed)
	k.liveness(dev, m, current.Number, observed)
	k.observePod(dev, observed)
	k.route(ctx, dev, m, &s, observed)
	return k.again(m, &s, current, observed), nil
}

// see asks for the sockets of the object's own processes. A backend that can't tell is believed to listen where it was told.
func (k *Kind) see(ctx context.Context, dev *v1alpha1.DevServer, m *memory, current runtime.Incarnation) sight {
	s := sight{wasReady: meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady)}
	if inPod(dev) {
		s.seePod(dev, m, current)
		return s
	}
	if k.inspector == nil {
		s.listeners = []runtime.Listener{{Address: "127.0.0.1", Port: assigned(dev).own()}}
		return s
	}
	listeners, err := k.inspector.Listeners(ctx, dev.UID)
	switch {
	case errors.Is(err, runtime.ErrNotFound): // it has just ended; the next look will say so
	case err != nil:
		if !m.blind {
			ctrl.LoggerFrom(ctx).Error(err, "Looking at the sockets of a server")
		}
		s.blind = "the sockets of its processes can't be seen; see the log of the manager"
	default:
		s.listeners = listeners
	}
	m.blind = s.blind != ""
	return s
}

// again says when to look again.
func (k *Kind) again(m *memory, s *sight, current runtime.Incarnation, observed *lifecycle.Observed) time.Duration {
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

// rarely is when to look again at a server that is ready.
func (k *Kind) rarely() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(lookSettled, time.Duration(len(k.memories))*lookPace)
}

// Rest says that nothing runs. The address stays, for a server that restarts is found there again.
func (k *Kind) Rest(ctx context.Context, object process.Object) {
	dev := devServer(object)
	k.probes.Forget(dev.UID)
	dev.Status.ObservedPorts = nil
	k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening, "nothing runs")
	if dev.Spec.URL.Detect == v1alpha1.URLDetectionDisabled {
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonDetectionDisabled, "")
	} else {
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonNotDetected, "nothing runs")
	}
	k.memory(dev.UID).incarnation = 0
	if !proxied(dev) && !claim.Live(dev) {
		dev.Status.BackendPort = 0 // what it was given next to this one is no proxy's any more
	}
	if !claim.Wants(dev) {
		k.release(dev.UID)
		k.ownAtRest(ctx, dev)
	}
}

// ownAtRest gives an object that does not want to run its owner too: it is to be deleted with it all the same.
func (k *Kind) ownAtRest(ctx context.Context, dev *v1alpha1.DevServer) {
	if !ownsNothing(dev) {
		return
	}
	if _, err := k.owners.Set(ctx, dev, dev.Spec.InstanceRef); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Setting the owner of a devserver that is stopped")
	}
}

// choosePort finds the port that people are sent to: the one that the server was given, else one that it has named itself, else the one that
// they were sent to so far, else the lowest.
func (s *sight) choosePort(given, sofar int32, urls []found) {
	ports := s.ports()
	if len(ports) == 0 {
		return
	}
	if slices.Contains(ports, given) {
		s.port = given
		return
	}
	best := len(urls)
	for i, u := range urls {
		if slices.Contains(ports, u.Port) && (best == len(urls) || u.Rank < urls[best].Rank) {
			best = i
		}
	}
	switch {
	case best < len(urls):
		s.port = urls[best].Port
	case s.wasReady && slices.Contains(ports, sofar):
		s.port = sofar
	case s.settled:
		s.port = ports[0]
	}
}

// ports gives the ports that the processes listen on, ascending.
func (s *sight) ports() []int32 {
	ports := make([]int32, 0, len(s.listeners))
	for _, listener := range s.listeners {
		ports = append(ports, listener.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// observePorts says which ports are listened on, and whether the one that was given is among them.
func (k *Kind) observePorts(dev *v1alpha1.DevServer, s *sight) {
	ports := s.ports()
	shown := ports[:min(len(ports), maxObservedPorts)]
	if !slices.Equal(dev.Status.ObservedPorts, shown) {
		dev.Status.ObservedPorts = shown
	}
	given := assigned(dev).own()
	switch {
	case slices.Contains(ports, given):
		k.set(dev, v1alpha1.ConditionPortVerified, true, v1alpha1.ReasonListening, fmt.Sprintf("listens on port %d", given)+k.withoutIPv6(dev))
	case len(ports) == 0:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening, fmt.Sprintf("does not listen on port %d", given))
	case s.port == 0:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening,
			fmt.Sprintf("listens on %s and not on port %d so far", list(shown), given))
	default:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonOtherPort,
			fmt.Sprintf("listens on %s instead of %d: give the program its port as $(PORT), with its flag against moving to another "+
				"(such as --strictPort), or set spec.port to the one that it uses", list(shown), given))
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
