// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// logLimit is the size, in bytes, at which the log is moved to FILE.old. The two logs together have at most about twice this size.
	logLimit = 8 << 20
	// followEvery is how often a child of another process is polled.
	followEvery = 200 * time.Millisecond
)

// record is the content of a pid file. It identifies the process even if its PID was reused.
type record struct {
	processIdentity
	Fingerprint string `json:"fingerprint"`
}

// child is the process of the control plane. It was started by this process, or by an earlier owner that was killed.
type child struct {
	name    string
	dir     layout
	record  record
	process *os.Process
	done    chan struct{} // closed when the process has exited
}

func startChild(dir layout, name string, argv []string) (*child, error) {
	// Keep the log of the previous process, which may explain why it exited. A rename needs no space on a full disk.
	_ = os.Rename(dir.log(name), dir.oldLog(name))
	log, err := os.OpenFile(dir.log(name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	// The log is a file instead of a pipe, so that the child survives a killed owner.
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = dir.root
	// The child has its own process group, so that Ctrl-C in the terminal reaches only the owner, which stops its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, dir: dir, process: cmd.Process, done: make(chan struct{})}
	id, identifyErr := identify(cmd.Process.Pid)
	c.record = record{processIdentity: id, Fingerprint: fingerprint(argv)}
	go func() {
		_ = cmd.Wait() // the log shows why it exited
		close(c.done)
	}()
	err = identifyErr
	if err == nil {
		err = c.writeRecord()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), c.stop(time.Second))
	}
	return c, nil
}

func (c *child) writeRecord() error {
	data, err := json.Marshal(c.record)
	if err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	return statedir.Write(c.dir.pid(c.name), data)
}

// findLeftovers returns the children that a killed owner left running, by name. It removes the pid files of processes that no longer exist. It returns an error
// if a pid file cannot be read or a process cannot be identified.
func findLeftovers(dir layout) (map[string]*child, error) {
	found := map[string]*child{}
	for _, name := range append([]string{program}, formerPrograms...) {
		data, err := os.ReadFile(dir.pid(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the pid file of %s: %w", name, err)
		}
		var rec record
		if err := json.Unmarshal(data, &rec); err != nil {
			return nil, fmt.Errorf("the pid file %s cannot be read (%w): if %s is still running, stop it; then remove that file", dir.pid(name), err, name)
		}
		// The handle is opened before the identity is checked, so that signals reach exactly the process that was checked.
		process, err := os.FindProcess(rec.PID)
		if err != nil {
			return nil, fmt.Errorf("find process %d: %w", rec.PID, err)
		}
		alive, err := rec.alive()
		if err != nil {
			return nil, fmt.Errorf("%s of an earlier run: %w; the pid file is %s", name, err, dir.pid(name))
		}
		if !alive {
			_ = process.Release()
			if err := os.Remove(dir.pid(name)); err != nil {
				return nil, fmt.Errorf("remove a stale pid file: %w", err)
			}
			continue
		}
		found[name] = &child{name: name, dir: dir, record: rec, process: process, done: make(chan struct{})}
	}
	return found, nil
}

// follow polls a child that another process started, because only the parent of a process can wait for its exit.
func (c *child) follow() {
	go func() {
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		defer close(c.done)
		for range tick.C {
			if alive, err := c.record.alive(); err == nil && !alive {
				return
			}
		}
	}()
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stop sends SIGTERM, and SIGKILL after the grace period. When it returns nil, the child has exited.
func (c *child) stop(grace time.Duration) error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 10 * time.Second}} {
		if c.ended() {
			break
		}
		// The handle refers to this process, even if another process has its PID now.
		if err := c.process.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s (process %d): %w", c.name, c.record.PID, err)
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-c.done:
		case <-timer.C:
		}
		timer.Stop()
	}
	if !c.ended() {
		return fmt.Errorf("%s (process %d) did not exit, even after SIGKILL", c.name, c.record.PID)
	}
	if err := os.Remove(c.dir.pid(c.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the pid file of %s: %w", c.name, err)
	}
	return nil
}

// boundLog moves the content of a log that exceeds logLimit to FILE.old. The child appends to the log, so it continues at the start of the empty file.
func boundLog(path string) {
	info, err := os.Stat(path)
	if err != nil || info.Size() < logLimit {
		return
	}
	if data := tail(path, logLimit); data != "" {
		_ = os.WriteFile(path+".old", []byte(data), 0o600)
	}
	_ = os.Truncate(path, 0)
}

// tail returns the last bytes of a file, up to limit, or the text of the error if the file cannot be read.
func tail(path string, limit int64) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > limit {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return err.Error()
	}
	return string(data)
}
