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
)

// podPort is the port of a server in a Pod whose spec sets none. Pods do not compete for ports.
const podPort = 8080

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
