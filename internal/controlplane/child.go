// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// logLimit is the size, in bytes, at which a log is moved to FILE.old. The two logs together have at most about twice this size.
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
	killed  bool          // a signal ended the process; set before done is closed, and only for a process that this process started
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
	c := &child{name: name, dir: dir, record: record{Fingerprint: fingerprint(argv)}, process: cmd.Process, done: make(chan struct{})}
	c.record.processIdentity, err = identify(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait() // the log shows why it exited
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		c.killed = ok && status.Signaled()
		close(c.done)
	}()
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

// findLeftover returns the child that a killed owner left running, or nil. It removes the pid file of a process that no longer exists. It returns an error if the
// pid file cannot be read or the process cannot be identified.
func findLeftover(dir layout) (*child, error) {
	path := dir.pid(program)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the pid file of %s: %w", program, err)
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, fmt.Errorf("the pid file %s cannot be read (%w): if %s is still running, stop it; then remove that file", path, err, program)
	}
	// The handle is opened before the identity is checked, so that signals reach exactly the process that was checked.
	process, err := os.FindProcess(rec.PID)
	if err != nil {
		return nil, fmt.Errorf("find process %d: %w", rec.PID, err)
	}
	alive, err := rec.alive()
	if err != nil {
		return nil, fmt.Errorf("%s of an earlier run: %w; the pid file is %s", program, err, path)
	}
	if !alive {
		_ = process.Release()
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove a stale pid file: %w", err)
		}
		return nil, nil
	}
	return &child{name: program, dir: dir, record: rec, process: process, done: make(chan struct{})}, nil
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
		select {
		case <-c.done:
		case <-time.After(step.wait):
		}
	}
	if !c.ended() {
		return fmt.Errorf("%s (process %d) did not exit, even after SIGKILL", c.name, c.record.PID)
	}
	if err := os.Remove(c.dir.pid(c.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the pid file of %s: %w", c.name, err)
	}
	return nil
}

// boundLogs moves the content of the logs of the child and of the manager to FILE.old if they exceed logLimit. Their programs append to them, so they continue at
// the start of the empty file. If FILE.old cannot be written, because the disk is full, a log is emptied only at four times the limit.
func (l layout) boundLogs(context.Context) {
	for _, path := range []string{l.log(program), l.log(manager)} {
		info, err := os.Stat(path)
		if err != nil || info.Size() < logLimit {
			continue
		}
		if err := statedir.Write(path+".old", []byte(tail(path, logLimit))); err == nil || info.Size() >= 4*logLimit {
			_ = os.Truncate(path, 0)
		}
	}
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

// etcdQuota limits the database file of etcd, in bytes. etcd rejects writes beyond this limit. It is a variable so that a test can lower the limit.
var etcdQuota int64 = 512 << 20

// argv returns the command line of the child. The command line contains no secrets, because every user of the machine can read it.
func argv(assets string, dir layout, port int) []string {
	return []string{
		filepath.Join(assets, program),
		"--state-dir=" + dir.root,
		fmt.Sprintf("--port=%d", port),
		fmt.Sprintf("--etcd-quota-bytes=%d", etcdQuota),
	}
}

// fingerprint returns a hash of the command line and of the size and modification time of the binary. If a running child has the same fingerprint, this
// version of berth would start the child in the same way.
func fingerprint(argv []string) string {
	words := strings.Join(argv, "\x00")
	if info, err := os.Stat(argv[0]); err == nil {
		words += fmt.Sprintf("\x00%d %d", info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(words))
	return hex.EncodeToString(sum[:])
}
