// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
)

// indexPort is the field index that finds DevServers by the ports in their spec and status.
const indexPort = "berth.dev/port"

// contested defines the contest for ports.
var contested = arbitration.Contest{Index: indexPort, Things: byPort, NewList: func() client.ObjectList { return &v1alpha1.DevServerList{} }}

// claimOn returns the claim of the object on a port. It also reports whether the object competes for the port, that is, whether the object uses the port or
// should use it.
func claimOn(dev *v1alpha1.DevServer, port int32) (arbitration.Claim, bool) {
	if inPod(dev) {
		return arbitration.Of(dev, false), false // every Pod has its own port space
	}
	given := port != 0 && (dev.Status.Port == port || dev.Status.BackendPort == port)
	running := given && (arbitration.Live(dev) || fronted(dev) && dev.Status.Port == port)
	wanted := arbitration.Competes(dev) && arbitration.Wants(dev) && nextPorts(dev).has(port)
	return arbitration.Of(dev, running || wanted && isRestarting(dev) && given), running || wanted
}

// rivals returns the DevServers of a list whose ports are not available to others: those that use a port, and those whose namespace permits the runtime. The
// list is shared, so rivals does not modify it.
func (k *Kind) rivals(ctx context.Context, all *v1alpha1.DevServerList) (*v1alpha1.DevServerList, error) {
	allowed := map[string]bool{}
	for i := range all.Items {
		namespace := all.Items[i].Namespace
		if _, known := allowed[namespace]; known {
			continue
		}
		var err error
		if allowed[namespace], err = k.permission.Allows(ctx, namespace, v1alpha1.RuntimeHost); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(slices.Collect(maps.Values(allowed)), false) {
		return all, nil
	}
	rivals := &v1alpha1.DevServerList{}
	for i := range all.Items {
		if dev := &all.Items[i]; allowed[dev.Namespace] || arbitration.Live(dev) {
			rivals.Items = append(rivals.Items, *dev)
		}
	}
	return rivals, nil
}

// fronted reports whether the proxy holds the port of the object. The proxy holds the port from its assignment until the object is deleted or the proxy is
// disabled.
func fronted(dev *v1alpha1.DevServer) bool {
	return proxied(dev) && dev.Status.BackendPort != 0
}

// proxied reports whether the spec enables the proxy.
func proxied(dev *v1alpha1.DevServer) bool { return dev.Spec.Proxy == v1alpha1.ProxyEnabled }

// nextPorts returns the ports of the next incarnation, with 0 for a port that must be allocated.
func nextPorts(dev *v1alpha1.DevServer) assignment {
	a := assignment{public: dev.Status.Port, proxied: proxied(dev)}
	if dev.Spec.Port != nil {
		a.public = *dev.Spec.Port
	}
	if a.proxied && dev.Status.BackendPort != a.public {
		a.backend = dev.Status.BackendPort
	}
	return a
}

// recordedPorts returns the ports of the recorded incarnation.
func recordedPorts(dev *v1alpha1.DevServer) assignment {
	return assignment{public: dev.Status.Port, backend: dev.Status.BackendPort, proxied: dev.Status.BackendPort != 0}
}

func isRestarting(dev *v1alpha1.DevServer) bool {
	return meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionRestarting)
}

// claimedPorts returns the ports of this machine in the spec and status of an object; none for a server in a Pod.
func claimedPorts(dev *v1alpha1.DevServer) []int32 {
	var ports []int32
	if inPod(dev) {
		return nil
	}
	if dev.Spec.Port != nil {
		ports = append(ports, *dev.Spec.Port)
	}
	for _, port := range []int32{dev.Status.Port, dev.Status.BackendPort} {
		if port != 0 && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

func byPort(object client.Object) []string {
	dev, ok := object.(*v1alpha1.DevServer)
	if !ok {
		return nil
	}
	var values []string
	for _, port := range claimedPorts(dev) {
		values = append(values, strconv.Itoa(int(port)))
	}
	return values
}
