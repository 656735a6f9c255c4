// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/test/need"
)

const pollEvery = 20 * time.Millisecond

// Engine is a Docker Engine. Stop it with Stop.
type Engine struct {
	// Host is the address of the engine in the form of DOCKER_HOST.
	Host string

	dir    string
	daemon *daemon
}

// daemon is one run of the engine.
type daemon struct {
	process *os.Process
	ended   chan struct{}
}

// Start starts an engine and waits until it answers. It returns ErrUnavailable if dockerd is missing or may not be used.
func Start() (*Engine, error) {
	if err := need.Missing("dockerd"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: dockerd has to be started as root", ErrUnavailable)
	}
	dir, err := os.MkdirTemp("", "berth-docker-")
	if err != nil {
		return nil, err
	}
	e := &Engine{Host: "unix://" + filepath.Join(dir, "docker.sock"), dir: dir}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	if err := e.Restart(); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

// group returns the cgroup of the engine's containers.
func (e *Engine) group() string { return filepath.Base(e.dir) }

// Restart starts the engine again with its existing data, and waits until it answers. The engine must not be running.
func (e *Engine) Restart() error {
	// Remove the pidfile of the previous run, because the engine would trust it.
	if err := os.Remove(e.path("pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cmd := exec.Command("dockerd", "--config-file", e.path("daemon.json"), "--data-root", e.path("data"), "--exec-root", e.path("exec"),
		"--pidfile", e.path("pid"), "--host", e.Host, "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		"--ip-masq=false", "--userland-proxy=false", "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/"+e.group())
	said, err := os.OpenFile(e.path("dockerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = said.Close() }()
	cmd.Stdout, cmd.Stderr = said, said
	// If the test process is killed, the engine receives SIGTERM.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	d := &daemon{ended: make(chan struct{})}
	begun := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when this thread exits
		defer runtime.UnlockOSThread()
		defer close(d.ended)
		err := cmd.Start()
		d.process = cmd.Process
		begun <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-begun; err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	e.daemon = d
	return e.await()
}

func (e *Engine) path(name string) string { return filepath.Join(e.dir, name) }

// await waits until the engine answers.
func (e *Engine) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	api, err := e.Client()
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	var last error
	err = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		select {
		case <-e.daemon.ended:
			return false, fmt.Errorf("%w: dockerd exited immediately; its log ends with:\n%s", ErrUnavailable, e.logTail())
		default:
			_, last = api.Ping(ctx, client.PingOptions{})
			return last == nil, nil
		}
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("dockerd did not answer within %s (%w); its log ends with:\n%s", Patience, last, e.logTail())
	}
	return err
}

// logTail returns the last log output of the engine.
func (e *Engine) logTail() []byte {
	text, _ := os.ReadFile(e.path("dockerd.log"))
	return text[max(0, len(text)-4<<10):]
}

// Kill kills the engine with SIGKILL, as a crash would. Its containers may keep running until Restart.
func (e *Engine) Kill() error {
	if err := e.daemon.process.Kill(); err != nil {
		return fmt.Errorf("kill dockerd: %w", err)
	}
	<-e.daemon.ended
	// containerd exits with its engine, but remains a zombie if no process reaps it. The next engine would wait for that process, whose PID is in the pidfile,
	// so the pidfile is removed.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := e.endProcesses(ctx, "containerd"); err != nil {
		return err
	}
	if err := os.Remove(e.path("exec/containerd/containerd.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Stop stops the engine and everything that belongs to it, and removes what it has created.
func (e *Engine) Stop() error {
	if d := e.daemon; d != nil {
		_ = d.process.Signal(syscall.SIGTERM) // it may have exited
		select {
		case <-d.ended:
		case <-time.After(Patience):
			_ = d.process.Kill()
			<-d.ended
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return errors.Join(e.endProcesses(ctx, ""), e.unmount(), e.removeGroups(ctx), os.RemoveAll(e.dir))
}
