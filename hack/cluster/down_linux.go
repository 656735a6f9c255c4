// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

// settings are the kernel settings that a kubelet and a bridge change for the whole machine.
var settings = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes", "net/ipv4/ip_forward"}

// keepSettings saves the current values of the settings.
func (c *cluster) keepSettings() error {
	before := map[string]string{}
	for _, name := range settings {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			before[name] = strings.TrimSpace(string(value))
		}
	}
	return writeFile(c.path("settings.json"), before)
}

func (c *cluster) restoreSettings() error {
	data, err := os.ReadFile(c.path("settings.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	before := map[string]string{}
	if err := errors.Join(err, json.Unmarshal(data, &before)); err != nil {
		return fmt.Errorf("read saved kernel settings: %w", err)
	}
	for name, value := range before {
		now, _ := os.ReadFile(filepath.Join("/proc/sys", name))
		if strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("restore %s to %s: %w", name, value, err)
		}
	}
	return nil
}

// down stops all processes, after checking their identity, and removes everything that up created. If there is no cluster, it does nothing.
func (c *cluster) down(ctx context.Context) error {
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("deleting a cluster needs root")
	}
	if _, err := os.Stat(c.path("settings.json")); err != nil {
		return fmt.Errorf("%s is not the folder of a cluster; set BERTH_CLUSTER to another folder, or remove this folder", c.dir)
	}
	say("deleting the cluster in %s", c.dir)
	sockets := c.shimSockets() // containerd forgets the sockets once their shims are gone
	for _, part := range slices.Backward(parts) {
		if part == "containerd" { // kill the Pods while containerd runs and can react to their exit; the kubelet has stopped
			if err := c.endPods(ctx); err != nil {
				return err
			}
		}
		if err := c.end(ctx, part); err != nil {
			return err
		}
	}
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	c.removeTraces()
	return errors.Join(c.endPods(ctx), c.unmount(), c.removeGroups(ctx), removeServices(ctx), removeForwarding(ctx), removeBridge(ctx), c.restoreSettings(), os.RemoveAll(c.dir))
}

// shimSockets returns the sockets of the shims, which are in a folder that all containerds of the machine share.
func (c *cluster) shimSockets() []string {
	var sockets []string
	addresses, _ := filepath.Glob(c.path("run/io.containerd.runtime.v2.task/k8s.io/*/address"))
	for _, file := range addresses {
		address, _ := os.ReadFile(file)
		if socket, ok := strings.CutPrefix(strings.TrimSpace(string(address)), "unix://"); ok && strings.HasPrefix(socket, "/run/containerd/s/") {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}

// removeTraces removes the files that containerd and the kubelet create at fixed locations.
func (c *cluster) removeTraces() {
	sandboxes, _ := os.ReadDir(c.path("containerd/io.containerd.grpc.v1.cri/sandboxes"))
	results, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, file := range results {
		for _, sandbox := range sandboxes {
			if strings.Contains(filepath.Base(file), sandbox.Name()) {
				_ = os.Remove(file)
			}
		}
	}
	links, _ := filepath.Glob("/var/log/containers/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, c.dir+"/") {
			_ = os.Remove(link)
		}
	}
	_ = os.Remove(devicePlugins) // up has checked that no other kubelet uses it
	// Folders that only this cluster used are empty now and are removed; others stay.
	for _, dir := range []string{"/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni", "/var/log/containers", "/var/log/pods",
		"/var/lib/kubelet/device-plugins", "/var/lib/kubelet"} {
		_ = os.Remove(dir)
	}
}

// unmount unmounts everything below the folder, in reverse order.
func (c *cluster) unmount() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var failed error
	for _, line := range slices.Backward(strings.Split(string(table), "\n")) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], c.dir+"/") {
			failed = errors.Join(failed, unix.Unmount(fields[4], unix.MNT_DETACH))
		}
	}
	return failed
}

// groups returns the cgroup of the Pods in every cgroup hierarchy.
func (c *cluster) groups() []string {
	var dirs []string
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(table), "\n") {
		before, after, found := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if found && len(fields) > 4 && strings.HasPrefix(after, "cgroup") {
			dirs = append(dirs, filepath.Join(fields[4], c.group()))
		}
	}
	return dirs
}

// addGroups creates the cgroup that the kubelet expects.
func (c *cluster) addGroups() error {
	for _, dir := range c.groups() {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%w: create cgroup: %w", errUnavailable, err)
		}
	}
	return nil
}

func (c *cluster) removeGroups(ctx context.Context) error {
	for _, dir := range c.groups() {
		if err := until(ctx, func(context.Context) error { return shim.RemoveCgroup(dir) }); err != nil {
			return err
		}
	}
	return nil
}

// removeServices removes the nftables tables that kube-proxy leaves in the kernel.
func removeServices(ctx context.Context) error {
	var failed error
	for _, family := range []string{"ip", "ip6"} {
		out, err := exec.CommandContext(ctx, "nft", "delete", "table", family, "kube-proxy").CombinedOutput()
		if err != nil && !errors.Is(err, exec.ErrNotFound) && !bytes.Contains(out, []byte("No such file")) {
			failed = errors.Join(failed, fmt.Errorf("remove table kube-proxy of family %s: %w: %s", family, err, out))
		}
	}
	return failed
}
