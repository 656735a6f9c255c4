// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
)

// Prepare implements process.Kind: it sets the port and the owner of the server.
func (k *Kind) Prepare(ctx context.Context, object process.Object, current *facts.Incarnation, start *process.StartSpec) error {
	dev := devServer(object)
	start.Probed = true
	m := k.cacheOf(dev.UID)
	m.start = start
	if current == nil && !inPod(dev) {
		k.noteLogEnd(ctx, dev.UID, m)
	}
	if start.Blocked == nil {
		blocked, err := k.owners.Set(ctx, dev, dev.Spec.InstanceRef)
		if err != nil {
			return err
		}
		start.Blocked = blocked
	}
	if inPod(dev) {
		return k.preparePod(ctx, dev, current, start)
	}
	start.RecordFirst = !nextPorts(dev).heldBy(dev) // until the status holds a port, another DevServer may claim the port
	if start.Blocked != nil && start.Blocked.Reason == v1alpha1.ReasonRuntimeForbidden && current == nil {
		k.proxies.Close(dev.UID) // the proxy must not keep the port from objects that are permitted to run
		dev.Status.BackendPort = 0
	}
	ports, blocked, err := k.assign(ctx, dev, current, start.Blocked != nil)
	if err != nil {
		return err
	}
	if start.Blocked == nil {
		start.Blocked = blocked
	}
	start.Variables = variables(dev, cmp.Or(ports.own(), dev.Status.Port))
	start.Fingerprint = []string{"port=" + strconv.Itoa(int(ports.public))}
	if ports.proxied {
		start.Fingerprint = append(start.Fingerprint, "proxy") // enabling or disabling the proxy requires a restart; a change of only the backend port does not
	}
	return nil
}

// variables returns the environment variables that Berth adds: the port, and settings that keep tools from opening a browser and from buffering output. It
// leaves out the settings that the spec contains.
func variables(dev *v1alpha1.DevServer, port int32) map[string]string {
	given := map[string]string{"PORT": strconv.Itoa(int(port))}
	for name, value := range map[string]string{"BROWSER": "none", "PYTHONUNBUFFERED": "1"} {
		set := slices.ContainsFunc(dev.Spec.Process.Env, func(env v1alpha1.EnvVar) bool { return env.Name == name })
		if !set {
			given[name] = value
		}
	}
	return given
}

// ownsNothing reports whether spec.instanceRef is set and the owner reference is still missing.
func ownsNothing(dev *v1alpha1.DevServer) bool {
	return dev.Spec.InstanceRef != nil && dev.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(dev.OwnerReferences, func(r metav1.OwnerReference) bool {
			return r.Kind == "Instance" && r.Name == dev.Spec.InstanceRef.Name
		})
}
