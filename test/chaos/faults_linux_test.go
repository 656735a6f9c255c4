// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fault is a fault that occurs while the clients work. Before inject returns, it undoes effects that would last: it continues a process that it has
// stopped, and frees disk space that it has filled.
type fault struct {
	name   string
	weight int
	inject func(ctx context.Context, w *world, random *rand.Rand) error
}

// faults are drawn at random in every cycle. Kills of the control plane take seconds and occur only in some cycles; see planeFault.
var faults = []fault{
	{"kill-manager", 8, func(_ context.Context, w *world, _ *rand.Rand) error {
		w.journal.record("kill-manager", "")
		return w.manager.crash(func(offset time.Duration) time.Duration { return offset })
	}},
	{"clock-jump", 3, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.manager.crash(func(was time.Duration) time.Duration {
			offset := []time.Duration{-time.Hour, 0, time.Hour}[random.IntN(3)]
			w.journal.record("clock-jump", "from %s to %s", was, offset)
			return offset
		})
	}},
	{"kill-shim", 6, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.applyToRandomProcess(random, "kill-shim", isShim, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"kill-leader", 6, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.applyToRandomProcess(random, "kill-leader", isWorkloadLeader, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"kill-child", 2, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.applyToRandomProcess(random, "kill-child", isWorkloadChild, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"freeze-shim", 4, func(ctx context.Context, w *world, random *rand.Rand) error {
		return w.applyToRandomProcess(random, "freeze-shim", isShim, func(p osProcess) error { return freeze(ctx, random, p.signal) })
	}},
	{"freeze-leader", 3, func(ctx context.Context, w *world, random *rand.Rand) error {
		return w.applyToRandomProcess(random, "freeze-leader", isWorkloadLeader, func(p osProcess) error { return freeze(ctx, random, p.signal) })
	}},
	{"freeze-manager", 2, func(ctx context.Context, w *world, random *rand.Rand) error {
		w.journal.record("freeze-manager", "")
		return freeze(ctx, random, func(signal unix.Signal) error { return w.manager.signal(signal) })
	}},
	{"disk-full", 2, func(ctx context.Context, w *world, random *rand.Rand) error {
		w.journal.record("disk-full", "")
		return fillDisk(ctx, random, w.state)
	}},
}

// randomFault returns a random fault. The probability of each fault is proportional to its weight.
func (w *world) randomFault(random *rand.Rand) fault {
	sum := 0
	for _, f := range w.faults {
		sum += f.weight
	}
	n := random.IntN(sum)
	for _, f := range w.faults {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	return w.faults[0]
}

func isShim(p osProcess) bool           { return p.env["CHAOS_NAME"] == "" }
func isWorkloadLeader(p osProcess) bool { return p.env["CHAOS_NAME"] != "" && p.isLeader() }
func isWorkloadChild(p osProcess) bool  { return p.env["CHAOS_NAME"] != "" && !p.isLeader() }

// applyToRandomProcess calls do with a random process that satisfies the condition which. If no process satisfies the condition, it does nothing.
func (w *world) applyToRandomProcess(random *rand.Rand, what string, which func(osProcess) bool, do func(osProcess) error) error {
	all, err := processesOf(w.workload, w.shim)
	if err != nil {
		return err
	}
	var fit []osProcess
	for _, p := range all {
		if which(p) {
			fit = append(fit, p)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	p := fit[random.IntN(len(fit))]
	w.journal.record(what, "%s", p)
	return do(p)
}

// freeze stops a process with SIGSTOP for at most 450 ms and then continues it, even if the context has ended.
func freeze(ctx context.Context, random *rand.Rand, signal func(unix.Signal) error) error {
	if err := signal(unix.SIGSTOP); err != nil {
		return err
	}
	sleep(ctx, time.Duration(50+random.IntN(400))*time.Millisecond)
	return signal(unix.SIGCONT)
}

// fillDisk fills the small file system of the state directory for at most 450 ms.
func fillDisk(ctx context.Context, random *rand.Rand, dir string) (err error) {
	ballast, err := os.CreateTemp(dir, "ballast-") // the name must be unique, because two of these faults may overlap
	if errors.Is(err, unix.ENOSPC) {
		return nil // the disk is already full
	}
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	defer func() { err = errors.Join(err, ballast.Close(), os.Remove(ballast.Name())) }()
	chunk := make([]byte, 1<<20)
	for size := len(chunk); size >= 512; {
		if _, err := ballast.Write(chunk[:size]); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return fmt.Errorf("fill the disk: %w", err)
		}
	}
	sleep(ctx, time.Duration(50+random.IntN(400))*time.Millisecond)
	return nil
}

// planeFault reports whether the control plane is killed in the cycle with this number, which happens in every tenth cycle.
func planeFault(cycle int) bool { return cycle%10 == 2 }

// killPlane kills the control plane at a random time and waits until it has restarted.
func (w *world) killPlane(ctx context.Context, random *rand.Rand) error {
	sleep(ctx, time.Duration(random.IntN(200))*time.Millisecond)
	w.journal.record("kill-control-plane", "")
	if err := w.plane.kill(); err != nil {
		return err
	}
	sleep(ctx, time.Duration(random.IntN(300))*time.Millisecond)
	return w.plane.waitUntilRestored(ctx)
}

// mountSmallDisk mounts a small file system on the state directory, so that the fault disk-full can fill it. Mounting needs root and does not work on every
// machine; if it fails, disk-full is not drawn.
func (w *world) mountSmallDisk() {
	err := errors.New("only root can mount")
	if os.Geteuid() == 0 {
		err = unix.Mount("berth-chaos", w.state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m,mode=0700")
	}
	if w.mounted = err == nil; !w.mounted {
		fmt.Printf("chaos: the fault disk-full is not drawn: %v\n", err)
	}
	for _, f := range faults {
		if f.name != "disk-full" || w.mounted {
			w.faults = append(w.faults, f)
		}
	}
}

func (w *world) unmountSmallDisk() error {
	if !w.mounted {
		return nil
	}
	w.mounted = false
	if err := unix.Unmount(w.state, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", w.state, err)
	}
	return nil
}
