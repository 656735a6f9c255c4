// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// assignment holds the ports of an incarnation.
type assignment struct {
	// public is the port that clients use; backend is the port that the server listens on behind a proxy.
	public, backend int32
	proxied         bool
}

// own returns the port that the program itself listens on.
func (a assignment) own() int32 {
	if a.proxied {
		return a.backend
	}
	return a.public
}

func (a assignment) has(port int32) bool {
	return port != 0 && (a.public == port || a.proxied && a.backend == port)
}

// heldBy reports whether the status of the object holds all ports of the assignment.
func (a assignment) heldBy(dev *v1alpha1.DevServer) bool {
	return !slices.ContainsFunc(a.list(), func(port int32) bool {
		claim, _ := claimOn(dev, port)
		return !claim.Holds
	})
}

// list returns all ports of the assignment, with 0 for a port that is not chosen yet.
func (a assignment) list() []int32 {
	if a.proxied {
		return []int32{a.public, a.backend}
	}
	return []int32{a.public}
}

// assign determines the ports of the next incarnation, or why they are not available. It records the ports in the status only if no incarnation is running;
// otherwise the status keeps the ports of the running incarnation.
func (k *Kind) assign(ctx context.Context, dev *v1alpha1.DevServer, current *facts.Incarnation, blocked bool) (assignment, *lifecycle.Blocked, error) {
	ports, has := nextPorts(dev), recordedPorts(dev)
	if blocked || !arbitration.Wants(dev) || current != nil && ports.public == has.public && ports.proxied == has.proxied {
		return ports, nil, nil
	}
	if current != nil && ports.public == 0 {
		return ports, nil, nil // the port of the running incarnation is unknown
	}
	all, err := k.claimants(ctx, dev, ports)
	if err == nil {
		all, err = k.rivals(ctx, all)
	}
	if err != nil {
		return ports, nil, err
	}
	unavailable := k.unavailable(ctx, dev, current, all, ports)
	k.claiming.Lock()
	defer k.claiming.Unlock()
	refusal := k.assignPorts(dev, current, all, unavailable, &ports)
	k.reserved.Release(dev.UID, k.clock.Now())
	if refusal != nil {
		return ports, refusal, nil
	}
	for _, port := range ports.list() {
		if port != 0 { // the backend port is chosen only after the running incarnation has exited
			k.reserved.Reserve(port, dev.UID, k.clock.Now())
		}
	}
	if current == nil {
		dev.Status.Port, dev.Status.BackendPort = ports.public, ports.backend
	}
	return ports, nil, nil
}

// unavailable returns why ports of the assignment are not available. It does so before the ports are locked, because finding the process that listens on a port
// can take long: it reads the open files of all processes. A claim of another object is checked again while the ports are locked.
func (k *Kind) unavailable(ctx context.Context, dev *v1alpha1.DevServer, current *facts.Incarnation, all *v1alpha1.DevServerList, ports assignment) refusals {
	found := refusals{}
	for _, port := range ports.list() {
		if port == 0 || k.proxies.Listens(dev.UID, port) || current != nil && port != ports.public {
			continue
		}
		if found[port] = k.contest(dev, all, port); found[port] == nil {
			found[port] = k.foreign(ctx, dev, all, port)
		}
	}
	return found
}

// refusals holds why a port is not available.
type refusals map[int32]*lifecycle.Blocked

// assignPorts chooses the ports that are still missing and checks that the others are available. If a port is not available, it returns the reason.
func (k *Kind) assignPorts(dev *v1alpha1.DevServer, current *facts.Incarnation, all *v1alpha1.DevServerList, unavailable refusals, ports *assignment) *lifecycle.Blocked {
	if current == nil && !ports.proxied {
		k.proxies.Close(dev.UID) // the program itself will listen on the port
	}
	refusal := k.assignPublic(dev, current, all, unavailable, ports)
	if refusal == nil && ports.proxied && current == nil {
		refusal = k.assignBackend(dev, all, unavailable, ports)
	}
	return refusal
}

// assignPublic determines the port that clients use. With a proxy, it also makes the proxy listen on that port.
func (k *Kind) assignPublic(dev *v1alpha1.DevServer, current *facts.Incarnation, all *v1alpha1.DevServerList, unavailable refusals, ports *assignment) *lifecycle.Blocked {
	if ports.public == 0 {
		return k.choose(dev, current, all, ports)
	}
	refusal := k.contest(dev, all, ports.public)
	if refusal == nil {
		refusal = unavailable[ports.public]
	}
	if refusal == nil {
		refusal = k.hold(dev, current, *ports)
	}
	if refusal != nil && dev.Spec.Port == nil && dev.Status.Incarnation == 0 {
		// Berth chose this port and no incarnation has used it yet, so Berth can choose another one.
		return k.choose(dev, current, all, ports, ports.public)
	}
	return refusal
}

// choose allocates the port that clients use.
func (k *Kind) choose(dev *v1alpha1.DevServer, current *facts.Incarnation, all *v1alpha1.DevServerList, ports *assignment, except ...int32) (refusal *lifecycle.Blocked) {
	if ports.public, refusal = k.allocate(dev, all, append(except, ports.backend)...); refusal != nil {
		return refusal
	}
	return k.hold(dev, current, *ports)
}

// hold makes the proxy listen on the public port of the next incarnation.
func (k *Kind) hold(dev *v1alpha1.DevServer, current *facts.Incarnation, ports assignment) *lifecycle.Blocked {
	if !ports.proxied || current != nil {
		return nil
	}
	if err := k.listen(dev, ports.public); err != nil {
		return portRefused(ports.public, err)
	}
	return nil
}

// portRefused converts the error of a proxy that cannot listen on its port.
func portRefused(port int32, err error) *lifecycle.Blocked {
	if errors.Is(err, fs.ErrPermission) {
		return &lifecycle.Blocked{
			Reason: v1alpha1.ReasonPortForbidden,
			Message: fmt.Sprintf("The proxy is not permitted to listen on port %d: ports below 1024 require root or the capability CAP_NET_BIND_SERVICE. "+
				"Set spec.port to 1024 or higher, or give the manager that capability.", port),
			Retry: noPortRetry,
		}
	}
	return &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonPortInUse,
		Message:  fmt.Sprintf("The proxy cannot listen on port %d: %v. Stop the program that uses the port or set another spec.port.", port, err),
		Retry:    conflictRetry,
	}
}

// assignBackend determines the port that the server listens on behind its proxy. If the previous port is not available, it chooses another one, because
// clients do not use this port.
func (k *Kind) assignBackend(dev *v1alpha1.DevServer, all *v1alpha1.DevServerList, unavailable refusals, ports *assignment) (refusal *lifecycle.Blocked) {
	if ports.backend != 0 && k.contest(dev, all, ports.backend) == nil && unavailable[ports.backend] == nil {
		return nil
	}
	ports.backend, refusal = k.allocate(dev, all, ports.public, ports.backend)
	return refusal
}
