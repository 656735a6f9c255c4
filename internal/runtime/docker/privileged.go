// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// powerful are the capabilities with which root in a container controls the machine. An engine adds none of them by default.
var powerful = []string{"ALL", "BPF", "DAC_READ_SEARCH", "MAC_ADMIN", "MAC_OVERRIDE", "PERFMON", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"}

// engineSockets are the usual paths of sockets that control an engine.
var engineSockets = []string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"}

// privileged returns why a container has rights on the machine, so that its adoption would give these rights to everyone who may type into it. It returns "" if
// the container has none. None of what it checks can change while the container exists.
func (r *Runtime) privileged(c *container.InspectResponse) string {
	host := c.HostConfig
	if host == nil {
		return "the engine does not report its rights"
	}
	if host.Privileged {
		return "it is privileged"
	}
	for _, namespace := range []struct{ name, mode string }{
		{"PID", string(host.PidMode)}, {"network", string(host.NetworkMode)}, {"IPC", string(host.IpcMode)}, {"user", string(host.UsernsMode)}, {"UTS", string(host.UTSMode)},
	} {
		if namespace.mode == "host" || strings.HasPrefix(namespace.mode, "container:") {
			return fmt.Sprintf("it uses the %s namespace of %s", namespace.name, strings.Replace(namespace.mode, "host", "the machine", 1))
		}
	}
	for _, added := range host.CapAdd {
		if name := strings.TrimPrefix(strings.ToUpper(added), "CAP_"); slices.Contains(powerful, name) {
			return "it has the capability " + name
		}
	}
	if len(host.Devices) > 0 {
		return "it has access to the device " + host.Devices[0].PathOnHost
	}
	for _, m := range c.Mounts {
		if control := r.controlledBy(m); control != "" {
			return fmt.Sprintf("it mounts %s, which contains %s", m.Source, control)
		}
	}
	return ""
}

// controlledBy returns the socket of an engine, or the state directory of Berth, if a mount contains it or is a part of it. It returns "" if neither is the case.
func (r *Runtime) controlledBy(m container.MountPoint) string {
	if m.Type != mount.TypeBind {
		return ""
	}
	protected := append([]string{filepath.Dir(r.options.Dir)}, engineSockets...)
	if path, local := strings.CutPrefix(r.client.DaemonHost(), "unix://"); local {
		protected = append(protected, path)
	}
	for _, path := range protected {
		if within(path, m.Source) || within(m.Source, path) {
			return path
		}
	}
	return ""
}

// within reports whether a path is a directory or is in it. It also compares what the paths are links to.
func within(path, dir string) bool {
	inside := func(path, dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	}
	return inside(path, dir) || inside(resolved(path), resolved(dir))
}

// resolved returns a path without symbolic links, as far as it exists.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}
