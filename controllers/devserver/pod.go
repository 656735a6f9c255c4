// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"strconv"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// podPort is the port of a server in a Pod whose spec sets none. Pods do not compete for ports.
	podPort = 8080
	// nowhere is the value of objectCache.pod while the Pod has no address.
	nowhere = "-"
)

// inPod reports whether the server runs in a Pod. Such a server uses no ports, sockets or commands of this machine.
func inPod(dev *v1alpha1.DevServer) bool {
	return podspec.Type(dev.Spec.Runtime) == v1alpha1.RuntimePod
}

// preparePod sets the port, Service and Pod of the server.
func (k *Kind) preparePod(ctx context.Context, dev *v1alpha1.DevServer, current *facts.Incarnation, plan *process.StartSpec) error {
	port := cmp.Or(dev.Status.Port, podPort)
	if dev.Spec.Port != nil {
		port = *dev.Spec.Port
	}
	plan.Variables = variables(dev, port)
	plan.Fingerprint = []string{"port=" + strconv.Itoa(int(port))}
	if err := podspec.Pod(plan, dev, "DevServer", dev.Spec.Runtime.Pod); err != nil {
		return err
	}
	if plan.Blocked != nil || !arbitration.Wants(dev) {
		return nil
	}
	if current == nil { // a running incarnation keeps its port in the status and the Service
		dev.Status.Port, dev.Status.BackendPort = port, 0
	}
	blocked, err := k.serve(ctx, dev)
	plan.Blocked = blocked
	return err
}

// seePod does what readSockets does for other servers. The sockets of a Pod cannot be read, so seePod assumes that the server listens on the port that it
// was given; the server must respond there to become Ready.
func (s *socketSnapshot) seePod(dev *v1alpha1.DevServer, m *objectCache, current facts.Incarnation) {
	if current.Address == "" {
		m.pod, s.blind = nowhere, "The Pod has no IP address yet."
		return
	}
	m.pod = current.Address
	s.listeners = []runtime.Listener{{Address: current.Address, Port: dev.Status.Port}}
}

// observePod sets the condition PortVerified of a Pod from the readiness result. If there is no result yet, because the manager has just started,
// observePod leaves the condition unchanged.
func (k *Kind) observePod(dev *v1alpha1.DevServer, observed *lifecycle.Observed) {
	switch {
	case !inPod(dev) || observed.Ready == nil:
	case *observed.Ready:
		k.set(dev, v1alpha1.ConditionPortVerified, true, v1alpha1.ReasonListening, "")
	default:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening, "The Pod does not respond.")
	}
}
