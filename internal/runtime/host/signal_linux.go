// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// Stop implements runtime.Runtime.
func (h *Host) Stop(_ context.Context, uid types.UID, incarnation int64) error {
	return h.ask(uid, incarnation, false)
}

// Kill implements runtime.Runtime.
func (h *Host) Kill(_ context.Context, uid types.UID, incarnation int64) error {
	return h.ask(uid, incarnation, true)
}

func (h *Host) ask(uid types.UID, incarnation int64, kill bool) error {
	e, err := h.acquire(uid)
	if err != nil {
		return err
	}
	f := h.inspect(e)
	if f.exists && (f.incarnation.Number == incarnation || f.incarnation.Killable && f.incarnation.Number == 0) {
		err = h.end(e, f, kill)
		f.exists = true
	}
	h.release(e, f.exists)
	if err != nil {
		return fmt.Errorf("stop incarnation %d of %s: %w", incarnation, uid, err)
	}
	return nil
}

func (h *Host) end(e *entry, f *observation, kill bool) error {
	h.cancelCommands(e)
	switch f.incarnation.Phase {
	case facts.Exited, facts.Failed:
		return nil
	case facts.Unknown:
		if f.incarnation.Killable {
			return h.endDamaged(e, f, kill)
		}
		return errors.New(f.incarnation.Message)
	}
	if !f.recorded {
		return endLeftover(f, kill)
	}
	return h.endRunning(e, f, kill)
}

// endRunning stops or kills an incarnation whose record is complete. endRunning writes the request before it inspects the process, and the shim reads the
// request after the shim has recorded the program. Therefore at least one of them sends the signal, even while the program is being started. The kill of a
// running process does not depend on the request, so it works even if the disk is full.
func (h *Host) endRunning(e *entry, f *observation, kill bool) error {
	if err := h.request(e, f, kill); err != nil && (!kill || f.incarnation.Phase != facts.Running) {
		return h.hint(err)
	}
	f = h.inspect(e)
	running := f.incarnation.Phase == facts.Running
	if kill {
		if !running {
			return nil
		}
		h.wakeShim(f)
		return f.tree.Kill()
	}
	if running {
		signal, ok := shim.SignalNumber(f.record.StopSignal)
		if !ok {
			signal = unix.SIGTERM
		}
		if err := f.tree.Signal(signal); err != nil {
			return err
		}
	}
	if !running && f.incarnation.Phase != facts.Starting {
		return nil
	}
	if err := statedir.WriteJSON(filepath.Join(h.dir(e.uid), shim.StoppedFile), shim.Request{Incarnation: f.record.Incarnation}, false); err != nil {
		return h.hint(fmt.Errorf("record that the signal was sent: %w", err))
	}
	return nil
}

// hint adds advice to a write error whose cause is a full disk. The system has one error for missing space and missing inodes.
func (h *Host) hint(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("the file system of the state directory %s is full; free some space there, or delete files if it has no inodes left (df -i): %w", h.options.StateDir, err)
	}
	return err
}

// request records a stop or a kill for the shim. A stop does not revoke an earlier kill.
func (h *Host) request(e *entry, f *observation, kill bool) error {
	path := filepath.Join(h.dir(e.uid), shim.RequestFile)
	var before shim.Request
	known, err := statedir.ReadJSON(path, &before)
	if known && err == nil && before.Incarnation == f.record.Incarnation && (before.Kill || !kill) {
		return nil
	}
	if err := h.writeRequest(path, shim.Request{Incarnation: f.record.Incarnation, Kill: kill}, false); err != nil {
		return fmt.Errorf("record the request: %w", err)
	}
	return nil
}

// wakeShim resumes a stopped shim, because the shim has to observe the exit of the tree.
func (h *Host) wakeShim(f *observation) {
	if f.held {
		_ = procstat.Signal(f.identity.Shim, unix.SIGCONT)
	}
}

func endLeftover(f *observation, kill bool) error {
	if kill {
		return f.tree.Kill()
	}
	return f.tree.Signal(unix.SIGTERM)
}
