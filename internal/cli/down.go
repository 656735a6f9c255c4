// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/controlplane"
)

// downPoll is how often a berth down checks whether another one has ended.
const downPoll = 100 * time.Millisecond

func (a *app) downCommand() *cobra.Command {
	f := &upFlags{}
	command := &cobra.Command{
		Use:   "down",
		Short: "Stop berth up, its processes and its control plane",
		Long: "Down stops the berth up of a state directory in the same way as Ctrl-C, and waits until it has ended. It also stops the processes and the control plane\n" +
			"that an earlier berth up left behind because it was killed or ran with --keep. The objects are kept, and the next berth up starts their processes\n" +
			"again. Adopted processes keep running.",
		Example: "  # Start berth up in the background, and stop it\n" +
			"  berth up --detach\n" +
			"  berth down",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error { return a.down(command.Context(), f) },
	}
	f.addLocations(command)
	return command
}

func (a *app) down(ctx context.Context, f *upFlags) error {
	// A berth manager may use the same kind of directory, and down must not stop its processes.
	if _, err := os.Stat(controlplane.KubeconfigPath(f.stateDir)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("berth up has not run with the state directory %s: set --state-dir", f.stateDir)
	}
	// A second berth down waits, because a second signal would make berth up exit immediately.
	alone := flock.New(filepath.Join(f.stateDir, "down.lock"), flock.SetPermissions(0o600))
	if _, err := alone.TryLockContext(ctx, downPoll); err != nil {
		return fmt.Errorf("wait for another berth down: %w", err)
	}
	defer func() { _ = alone.Close() }()
	owner, err := controlplane.FindOwner(f.stateDir)
	if err != nil {
		return err
	}
	if owner != nil {
		a.say("stopping berth up (process %d)", owner.PID)
		if err := owner.Stop(ctx); err != nil {
			return fmt.Errorf("wait for berth up (process %d): %w", owner.PID, err)
		}
	}
	ended, err := a.endLeftovers(ctx, f)
	switch {
	case err != nil:
		return err
	case owner == nil && !ended:
		a.say("berth up is not running")
	default:
		a.say("stopped")
	}
	return nil
}

// endLeftovers stops the processes and the control plane that a berth up left behind. It reports whether there were any.
func (a *app) endLeftovers(ctx context.Context, f *upFlags) (ended bool, err error) {
	plane, err := controlplane.LeftBehind(f.stateDir)
	if err != nil {
		return false, err
	}
	opened, err := a.newRuntime(runtimeOptions{stateDir: f.stateDir, shim: f.shim, lsp: f.lsp, log: logr.Discard()})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	found, err := opened.registry.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list running processes: %w", err)
	}
	if !plane && len(stoppable(found)) == 0 {
		return false, nil
	}
	a.say("an earlier berth up left processes behind; stopping them")
	// The control plane has to run, because each stop is recorded in the object.
	options := controlplane.Options{StateDir: f.stateDir, Assets: f.assets, Progress: func(line string) { a.say("%s", line) }}
	running, err := controlplane.Start(ctx, options)
	if err != nil && ctx.Err() != nil {
		return false, err
	}
	if err != nil {
		// This fails if another berth up has locked the state directory in the meantime. Its processes must keep running.
		if locked := controlplane.StopLeftBehind(options); locked != nil {
			return false, errors.Join(err, locked)
		}
		stopper := &processStopper{on: opened.registry, clock: a.clock, say: a.say}
		failed := stopper.endAll(context.WithoutCancel(ctx))
		return true, errors.Join(fmt.Errorf("the stops were not recorded in the objects, so the next berth up counts each of them as a crash: %w", err), failed)
	}
	config := running.Config()
	config.QPS = -1 // no rate limit: the API server serves only this machine
	err = a.endWorkloads(ctx, config, opened)
	return true, errors.Join(err, running.Stop())
}
