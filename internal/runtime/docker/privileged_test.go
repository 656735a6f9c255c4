// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"path/filepath"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// A container with rights on the machine cannot be adopted, and one without them can.
func TestAdopt_RefusesContainerWithRightsOnTheMachine(t *testing.T) {
	state := t.TempDir()
	api, err := client.New(client.WithHost("unix:///srv/engine/own.sock"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = api.Close() })
	r := &Runtime{options: Options{Dir: filepath.Join(state, "docker")}, client: api}
	bind := func(source string) func(*container.InspectResponse) {
		return func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeBind, Source: source, Destination: "/x"})
		}
	}
	for name, c := range map[string]struct {
		change func(*container.InspectResponse)
		why    string
	}{
		"ordinary": {func(*container.InspectResponse) {}, ""},
		"private namespaces": {func(c *container.InspectResponse) {
			c.HostConfig.IpcMode, c.HostConfig.NetworkMode = "private", "bridge"
		}, ""},
		"harmless capability": {func(c *container.InspectResponse) { c.HostConfig.CapAdd = []string{"CAP_NET_BIND_SERVICE"} }, ""},
		"directory":           {bind("/srv/agents"), ""},
		"similar name":        {bind("/srv/engine/own.sock.d"), ""},
		"volume": {func(c *container.InspectResponse) {
			c.Mounts = []container.MountPoint{{Type: mount.TypeVolume, Source: "/var"}}
		}, ""},
		"unknown rights":     {func(c *container.InspectResponse) { c.HostConfig = nil }, "does not report"},
		"privileged":         {func(c *container.InspectResponse) { c.HostConfig.Privileged = true }, "it is privileged"},
		"host PIDs":          {func(c *container.InspectResponse) { c.HostConfig.PidMode = "host" }, "PID namespace of the machine"},
		"host network":       {func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "host" }, "network namespace of the machine"},
		"host IPC":           {func(c *container.InspectResponse) { c.HostConfig.IpcMode = "host" }, "IPC namespace of the machine"},
		"host users":         {func(c *container.InspectResponse) { c.HostConfig.UsernsMode = "host" }, "user namespace of the machine"},
		"network of another": {func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "container:abc" }, "network namespace of container:abc"},
		"all capabilities":   {func(c *container.InspectResponse) { c.HostConfig.CapAdd = []string{"all"} }, "capability ALL"},
		"capability":         {func(c *container.InspectResponse) { c.HostConfig.CapAdd = []string{"CAP_SYS_ADMIN"} }, "capability SYS_ADMIN"},
		"device": {func(c *container.InspectResponse) {
			c.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: "/dev/sda"}}
		}, "device /dev/sda"},
		"socket of the engine":    {bind("/srv/engine/own.sock"), "/srv/engine/own.sock"},
		"directory of the socket": {bind("/srv/engine"), "/srv/engine/own.sock"},
		"usual socket":            {bind("/var/run/docker.sock"), "/var/run/docker.sock"},
		"root of the machine":     {bind("/"), "which contains"},
		"state directory":         {bind(state), state},
		"in the state directory":  {bind(filepath.Join(state, "host")), state},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			inspected := &container.InspectResponse{ID: "0123456789abcdef", Name: "/agent", Config: &container.Config{}, HostConfig: &container.HostConfig{}}
			c.change(inspected)
			refused := r.mayAdopt("uid", inspected, containerConfig{Container: "agent", Adopt: adoptRequired})
			if c.why == "" {
				g.Expect(refused).NotTo(HaveOccurred())
				return
			}
			g.Expect(refused).To(HaveOccurred())
			g.Expect(refused.Reason).To(Equal(v1alpha1.ReasonContainerTaken))
			g.Expect(refused.Message).To(ContainSubstring(c.why))
		})
	}
}

// An engine accepts every beginning of an ID. Such a text could be permitted by a policy that is meant for names.
func TestAdopt_AcceptsOnlyNameOrID(t *testing.T) {
	g := NewWithT(t)
	c := &container.InspectResponse{ID: "a3f9c2d41b07aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Name: "/production-db"}
	for text, want := range map[string]bool{"production-db": true, "a3f9c2d41b07": true, c.ID: true, "a": false, "a3f9": false, "a3f9c2d41b07a": false, "b3f9c2d41b07": false, "production": false, "": false} {
		g.Expect(names(text, c)).To(Equal(want), text)
	}
}
