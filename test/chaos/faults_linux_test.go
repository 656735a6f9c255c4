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

// fault is a fault that occurs while the clients work. Before strike returns, it undoes effects that would last: it continues a process that it has
// stopped, and frees disk space that it has filled.
type fault struct {
	name   string
	weight int
	strike func(ctx context.Context, w *world, random *rand.Rand) error
}

// faults are drawn at random in every cycle. Kills of the control plane take seconds and occur only in some cycles; see planeFaults.
var faults = []fault{
	{"kill-manager", 8, func(_ context.Context, w *world, _ *rand.Rand) error {
		w.journal.note("kill-manager", "")
		return w.manager.crash(func(offset time.Duration) time.Duration { return offset })
	}},
	{"clock-jump", 3, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.manager.crash(func(was time.Duration) time.Duration {
			offset := []time.Duration{-time.Hour, 0, time.Hour}[random.IntN(3)]
			w.journal.note("clock-jump", "from %s to %s", was, offset)
			return offset
		})
	}},
	{"kill-shim", 6, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.victim(random, "kill-shim", shims, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"kill-leader", 6, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.victim(random, "kill-leader", leaders, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"kill-child", 2, func(_ context.Context, w *world, random *rand.Rand) error {
		return w.victim(random, "kill-child", children, func(p osProcess) error { return p.signal(unix.SIGKILL) })
	}},
	{"freeze-shim", 4, func(ctx context.Context, w *world, random *rand.Rand) error {
		return w.victim(random, "freeze-shim", shims, func(p osProcess) error { return freeze(ctx, random, p.signal) })
	}},
	{"freeze-leader", 3, func(ctx context.Context, w *world, random *rand.Rand) error {
		return w.victim(random, "freeze-leader", leaders, func(p osProcess) error { return freeze(ctx, random, p.signal) })
	}},
	{"freeze-manager", 2, func(ctx context.Context, w *world, random *rand.Rand) error {
		w.journal.note("freeze-manager", "")
		return freeze(ctx, random, func(signal unix.Signal) error { return w.manager.signal(signal) })
	}},
	{"disk-full", 2, func(ctx context.Context, w *world, random *rand.Rand) error {
		w.journal.note("disk-full", "")
		return fill(ctx, random, w.state)
	}},
}

// draw returns a random fault. The probability of each fault is proportional to its weight.
func (w *world) draw(random *rand.Rand) fault {
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

func shims(p osProcess) bool    { return p.env["CHAOS_NAME"] == "" }
func leaders(p osProcess) bool  { return p.env["CHAOS_NAME"] != "" && p.leader() }
func children(p osProcess) bool { return p.env["CHAOS_NAME"] != "" && !p.leader() }

// victim applies do to a random one of the processes that satisfy which. If there is no such process, it does nothing.
func (w *world) victim(random *rand.Rand, what string, which func(osProcess) bool, do func(osProcess) error) error {
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
	w.journal.note(what, "%s", p)
	return do(p)
}

// freeze stops a process with SIGSTOP for at most 450 ms and then continues it, even if the context has ended.
func freeze(ctx context.Context, random *rand.Rand, signal func(unix.Signal) error) error {
	if err := signal(unix.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, time.Duration(50+random.IntN(400))*time.Millisecond)
	return signal(unix.SIGCONT)
}

// fill fills the small file system of the state directory for at most 450 ms.
func fill(ctx context.Context, random *rand.Rand, dir string) (err error) {
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
	pause(ctx, time.Duration(50+random.IntN(400))*time.Millisecond)
	return nil
}

// planeFaults returns the parts of the control plane that are killed in the cycle with this number.
func planeFaults(cycle int) []string {
	switch cycle % 60 {
	case 2, 22:
		return []string{apiServer}
	case 12, 32:
		return []string{etcd}
	case 42:
		return []string{etcd, apiServer}
	case 52:
		return []string{controllerManager}
	}
	return nil
}

// strikePlane kills parts of the control plane at a random time and waits until they have restarted.
func (w *world) strikePlane(ctx context.Context, random *rand.Rand, parts []string) error {
	pause(ctx, time.Duration(random.IntN(200))*time.Millisecond)
	for _, name := range parts {
		w.journal.note("kill-"+name, "")
		if err := w.plane.kill(name); err != nil {
			return err
		}
	}
	pause(ctx, time.Duration(random.IntN(300))*time.Millisecond)
	return w.plane.recover(ctx)
}

// mount mounts a small file system on the state directory, so that the fault disk-full can fill it. Mounting needs root and does not work on every
// machine; if it fails, disk-full is not drawn.
func (w *world) mount() {
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

func (w *world) unmount() error {
	if !w.mounted {
		return nil
	}
	w.mounted = false
	if err := unix.Unmount(w.state, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", w.state, err)
	}
	return nil
}
