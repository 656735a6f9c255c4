// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// managerChild is a manager in a separate process.
type managerChild struct {
	program string
	env     []string
	log     string

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{}
	offset time.Duration
	starts int
}

func (m *managerChild) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.startLocked()
}

func (m *managerChild) startLocked() error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(m.program)
	cmd.Env = append(append(os.Environ(), m.env...), "CHAOS_CLOCK_OFFSET="+m.offset.String())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	done := make(chan struct{})
	m.cmd, m.done = cmd, done
	m.starts++
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// crash kills the manager with SIGKILL and starts a new manager. The function offset receives the clock offset of the old manager and returns the clock
// offset of the new one.
func (m *managerChild) crash(offset func(time.Duration) time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the manager: %w", err)
	}
	<-m.done
	m.offset = offset(m.offset)
	return m.startLocked()
}

func (m *managerChild) signal(signal os.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal the manager: %w", err)
	}
	return nil
}

func (m *managerChild) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cmd.Process.Pid
}

// restartIfExited restarts the manager if the manager has exited without being killed. The manager may exit at startup if its dependencies are unavailable.
func (m *managerChild) restartIfExited() (ended bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return true, m.startLocked()
	default:
		return false, nil
	}
}

// stop stops the manager with SIGTERM and returns an error if it does not exit cleanly.
func (m *managerChild) stop(patience time.Duration) error {
	if err := m.signal(syscall.SIGTERM); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C:
		_ = m.cmd.Process.Kill()
		<-m.done
		return fmt.Errorf("the manager did not exit within %s of SIGTERM", patience)
	}
	if state := m.cmd.ProcessState; !state.Success() {
		return fmt.Errorf("the manager exited after SIGTERM with: %s", state)
	}
	return nil
}

// discard kills the manager.
func (m *managerChild) discard() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		<-m.done
	}
}

var panicPattern = regexp.MustCompile(`(?m)^(panic:|fatal error:|WARNING: DATA RACE).*|Observed a panic.*`)

// checkNoPanic returns an error if the manager has ever panicked or reported a data race.
func (m *managerChild) checkNoPanic() error {
	data, err := os.ReadFile(m.log)
	if err != nil {
		return err
	}
	if found := panicPattern.Find(data); found != nil {
		return fmt.Errorf("the log of the manager contains: %s", found)
	}
	return nil
}
