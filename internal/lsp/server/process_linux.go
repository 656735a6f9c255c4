// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

// leftoverGrace is the time between SIGTERM and SIGKILL for processes that the server leaves behind.
const leftoverGrace = 2 * time.Second

// Process is one incarnation of the server.
type Process struct {
	// Stdin is the input of the server, and Stdout its output.
	Stdin, Stdout *os.File
	Identity      procstat.Process
	StartedAt     time.Time // when the server was executed

	signal syscall.Signal
	tree   shim.Tree

	leaderDone, done chan struct{}
	leaderExit, exit *facts.Exit // written before the channels are closed

	stopping, killing sync.Once

	mu   sync.Mutex
	over bool          // set when done is closed; read by send
	most time.Duration // maximum CPU time measured
}

// LeaderDone returns a channel that is closed when the server itself has exited. Other processes of its tree may still be alive; they are then terminated
// automatically.
func (p *Process) LeaderDone() <-chan struct{} { return p.leaderDone }

// LeaderExit blocks until LeaderDone is closed, and returns the exit of the server itself.
func (p *Process) LeaderExit() *facts.Exit {
	<-p.leaderDone
	return p.leaderExit
}

// Done returns a channel that is closed when no process of the tree is left and the exit is known.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit blocks until Done is closed, and returns the exit of the server.
func (p *Process) Exit() *facts.Exit {
	<-p.done
	return p.exit
}

// Close closes stdin and stdout. Call it when the process is done and its output is no longer read.
func (p *Process) Close() {
	_ = p.Stdin.Close()
	_ = p.Stdout.Close()
}

// collect reaps all children, including orphans of the tree, until none is left.
func (p *Process) collect() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // no child is left, and therefore no descendant
			p.end()
			return
		case pid == p.Identity.PID:
			p.leaderExit = shim.ExitOf(status, time.Now())
			close(p.leaderDone)
			go p.clear()
		}
	}
}

// end records that no process is left.
func (p *Process) end() {
	p.exit = p.leaderExit
	if p.exit == nil { // another waiter has reaped the server
		p.exit = &facts.Exit{FinishedAt: time.Now().UTC().Round(0), Message: "the exit status of the server is unknown"}
		p.leaderExit = p.exit
		close(p.leaderDone)
	}
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	occupied.Store(false)
	close(p.done)
}

// send sends a signal to the process tree. After the server is done, send does nothing: the descendants of the multiplexer may then belong to the next server.
func (p *Process) send(signal syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	return p.tree.Signal(signal)
}

// clear terminates the processes that remain after the server itself exited.
func (p *Process) clear() {
	if within(5*time.Millisecond, p.done) { // usually none is left
		return
	}
	_ = p.send(unix.SIGTERM)
	if !within(leftoverGrace, p.done) {
		_ = p.Kill()
	}
}

// within waits at most d, and reports whether the channel was closed.
func within(d time.Duration, closed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-closed:
		return true
	case <-timer.C:
		return false
	}
}

// Stop starts a graceful stop in steps, until the server exits: it calls shutdown, closes stdin, and sends the stop signal to the whole tree. Further calls do
// nothing. Stop does not wait for the steps and never sends SIGKILL.
func (p *Process) Stop(shutdown func(context.Context) error, grace time.Duration) {
	p.stopping.Do(func() { go p.descend(shutdown, grace) })
}

func (p *Process) descend(shutdown func(context.Context) error, grace time.Duration) {
	if shutdown != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rung(shutdownRung, grace))
		asked := make(chan error, 1)
		go func() { asked <- shutdown(ctx) }()
		var err error
		select {
		case err = <-asked:
		case <-ctx.Done(): // a writer that is blocked on a full pipe must not delay the next step
			err = ctx.Err()
		case <-p.leaderDone:
		}
		cancel()
		// If shutdown failed, the server was probably not asked to exit, so do not wait for its exit.
		if err == nil && within(rung(exitRung, grace), p.leaderDone) {
			return
		}
	}
	_ = p.Stdin.Close()
	if within(rung(stdinRung, grace), p.leaderDone) {
		return
	}
	_ = p.send(p.signal)
}

// Kill sends SIGKILL to the whole tree, and repeats it until no process is left. It does not wait for the exit of the processes.
func (p *Process) Kill() error {
	err := p.send(unix.SIGKILL)
	p.killing.Do(func() {
		go func() {
			for pause := 5 * time.Millisecond; !within(pause, p.done); pause = min(2*pause, time.Second) {
				_ = p.send(unix.SIGKILL)
			}
		}()
	})
	return err
}

// Usage returns the memory of the process tree, and the CPU time that the tree has used so far. The CPU time never decreases, but may omit processes that have
// exited.
func (p *Process) Usage() (memoryBytes int64, cpu time.Duration, err error) {
	members, err := p.tree.Members()
	if err != nil {
		return 0, 0, err
	}
	for _, member := range members {
		stat, _ := procstat.Read(member.PID) // zero if the process has exited
		memoryBytes, cpu = memoryBytes+stat.Memory, cpu+stat.CPU
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, cpu)
	return memoryBytes, p.most, nil
}
