// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// parts lists the processes of the cluster in the order in which they start.
var parts = []string{"containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

// identity distinguishes a process from a later one with the same PID.
type identity struct {
	procstat.Process
	Boot string `json:"boot"`
}

func identify(pid int) (identity, error) {
	boot, err := procstat.BootID()
	if err != nil {
		return identity{}, err
	}
	process, err := procstat.Identify(pid)
	return identity{process, boot}, err
}

// start starts a component, which outlives this program, and records its identity.
func (c *cluster) start(part string, argv ...string) error {
	said, err := os.OpenFile(c.path("logs", part+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = said.Close() }()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = said, said, c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", part, err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s exited immediately: %w", part, err)
	}
	go func() { _ = cmd.Wait() }()
	return writeFile(c.path("logs", part+".pid"), id)
}

// recorded returns the identity of the process of a component, or nil if it was never started.
func (c *cluster) recorded(part string) *identity {
	data, err := os.ReadFile(c.path("logs", part+".pid"))
	var id identity
	if err != nil || json.Unmarshal(data, &id) != nil {
		return nil
	}
	return &id
}

// alive reports whether the process, or a thread of it that still holds its ports, is running.
func (i *identity) alive() bool {
	boot, err := procstat.BootID()
	if err != nil || boot != i.Boot {
		return false
	}
	alive, err := procstat.Alive(i.Process)
	return alive && err == nil
}

func (c *cluster) allAlive() bool {
	for _, part := range parts {
		if id := c.recorded(part); id == nil || !id.alive() {
			return false
		}
	}
	return true
}

// send opens a handle for a process, calls the function still, which checks the process, and sends the signal if the result is true. In this order, the signal
// reaches exactly the process that was checked.
func send(pid int, sig unix.Signal, still func() bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if still() {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// end sends SIGTERM to a component, and kills it if it has not exited after 15 s.
func (c *cluster) end(ctx context.Context, part string) error {
	id := c.recorded(part)
	if id == nil || !id.alive() {
		return nil
	}
	send(id.PID, unix.SIGTERM, id.alive)
	polite, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if until(polite, id.gone) == nil {
		return nil
	}
	return c.kill(ctx, part)
}

// kill sends SIGKILL to a component and waits for its exit.
func (c *cluster) kill(ctx context.Context, part string) error {
	id := c.recorded(part)
	if id == nil || !id.alive() {
		return nil
	}
	send(id.PID, unix.SIGKILL, id.alive)
	return until(ctx, id.gone)
}

// gone returns an error while the process is running.
func (i *identity) gone(context.Context) error {
	if i.alive() {
		return fmt.Errorf("process %d is still running", i.PID)
	}
	return nil
}

// owns reports whether a process belongs to a Pod of this cluster, according to its cgroup, or is a shim of the cluster's containerd.
func (c *cluster) owns(pid int) bool {
	process, err := procstat.Identify(pid)
	if err != nil {
		return false
	}
	if alive, err := procstat.Alive(process); err != nil || !alive {
		return false // a zombie still has a cgroup
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	program, rest, _ := bytes.Cut(args, []byte{0})
	if strings.HasPrefix(filepath.Base(string(program)), "containerd-shim") && bytes.Contains(rest, []byte(c.dir+"/")) {
		return true
	}
	groups, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
	return bytes.Contains(groups, []byte(":/"+c.group()+"/"))
}

// endPods kills the remaining processes of the Pods and their shims.
func (c *cluster) endPods(ctx context.Context) error {
	return until(ctx, func(context.Context) error {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		var left []int
		for _, entry := range entries {
			if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() && c.owns(pid) {
				left = append(left, pid)
				send(pid, unix.SIGKILL, func() bool { return c.owns(pid) })
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("processes of Pods are still running: %v", left)
		}
		return nil
	})
}

// lastWords returns the ends of the logs, to find out why the cluster did not start or how it failed.
func (c *cluster) lastWords() string {
	var text strings.Builder
	for _, part := range parts {
		log, err := os.Open(c.path("logs", part+".log"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if size, err := log.Seek(0, io.SeekEnd); err == nil {
			_, _ = log.Seek(max(0, size-6000), io.SeekStart)
		}
		data, _ := io.ReadAll(log)
		_ = log.Close()
		fmt.Fprintf(&text, "\n== end of the log of %s\n%s", part, data)
	}
	return text.String()
}
