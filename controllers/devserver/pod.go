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
func (k *Kind) preparePod(ctx context.Context, dev *v1alpha1.DevServer, current *facts.Incarnation, start *process.StartSpec) error {
	port := cmp.Or(dev.Status.Port, podPort)
	if dev.Spec.Port != nil {
		port = *dev.Spec.Port
	}
	start.Variables = variables(dev, port)
	start.Fingerprint = []string{"port=" + strconv.Itoa(int(port))}
	if err := podspec.Pod(start, dev, "DevServer", dev.Spec.Runtime.Pod); err != nil {
		return err
	}
	if start.Blocked != nil || !arbitration.Wants(dev) {
		return nil
	}
	if current == nil { // a running incarnation keeps its port in the status and the Service
		dev.Status.Port, dev.Status.BackendPort = port, 0
	}
	blocked, err := k.serve(ctx, dev)
	start.Blocked = blocked
	return err
}
