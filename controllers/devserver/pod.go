// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"strconv"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/claim"
	"github.com/berth-dev/berth/controllers/place"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// podPort is where a server in a Pod listens when its spec does not say it. No two Pods compete for a port.
	podPort = 8080
	// nowhere is the address of a Pod that has none yet.
	nowhere = "-"
)

// inPod says that the server runs in a Pod: nothing of this machine, neither ports nor sockets nor commands, has to do with it.
func inPod(dev *v1alpha1.DevServer) bool { return place.Type(dev.Spec.Runtime) == v1alpha1.RuntimePod }

// preparePod gives the server its port, its Service and its Pod.
func (k *Kind) preparePod(ctx context.Context, dev *v1alpha1.DevServer, current *facts.Incarnation, plan *process.Plan) error {
	port := cmp.Or(dev.Status.Port, podPort)
	if dev.Spec.Port != nil {
		port = *dev.Spec.Port
	}
	plan.Variables = variables(dev, port)
	plan.Fingerprint = []string{"port=" + strconv.Itoa(int(port))}
	if err := place.Pod(plan, dev, "DevServer", dev.Spec.Runtime.Pod); err != nil {
		return err
	}
	if plan.Blocked != nil || !claim.Wants(dev) {
		return nil
	}
	if current == nil { // until then the status, and the Service, have that of the one that runs
		dev.Status.Port, dev.Status.BackendPort = port, 0
	}
	blocked, err := k.serve(ctx, dev)
	plan.Blocked = blocked
	return err
}

// seePod is see for a Pod, whose sockets nobody sees: it is believed to listen where it was told, and has to answer there to be ready.
func (s *sight) seePod(dev *v1alpha1.DevServer, m *memory, current facts.Incarnation) {
	if current.Address == "" {
		m.pod, s.blind = nowhere, "its Pod has no address yet"
		return
	}
	m.pod = current.Address
	s.listeners = []runtime.Listener{{Address: current.Address, Port: dev.Status.Port}}
}

// observePod says of the port what is known from answers. What a manager that has just come does not know stays as it is.
func (k *Kind) observePod(dev *v1alpha1.DevServer, observed *lifecycle.Observed) {
	switch {
	case !inPod(dev) || observed.Ready == nil:
	case *observed.Ready:
		k.set(dev, v1alpha1.ConditionPortVerified, true, v1alpha1.ReasonListening, "the Pod has answered")
	default:
		k.set(dev, v1alpha1.ConditionPortVerified, false, v1alpha1.ReasonNotListening, "the Pod does not answer")
	}
}
