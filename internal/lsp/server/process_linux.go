// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

// leftoverGrace is how long what the server leaves behind has between SIGTERM and SIGKILL.
const leftoverGrace = 2 * time.Second

// Process is one incarnation of the server.
type Process struct {
	*streams
	identity  shim.Process
	startedAt time.Time
	signal    syscall.Signal
	tree      shim.Tree

	leaderDone, done chan struct{}
	leaderExit, exit *facts.Exit // written before the channels are closed

	stopping, killing sync.Once

	mu   sync.Mutex
	over bool          // as done, for those who signal
	most time.Duration // of CPU time that was seen
}

// Stdin is where the server reads. Closing it twice is fine.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout is what the server writes. It has SetReadDeadline.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Drained is closed when Stdout was read to its end.
func (p *Process) Drained() <-chan struct{} { return p.stdout.ended }

// Identity says which process the server is.
func (p *Process) Identity() shim.Process { return p.identity }

// StartedAt is when it was executed.
func (p *Process) StartedAt() time.Time { return p.startedAt }

// LeaderDone is closed when the server itself has ended; others of its tree, which are ended by themselves then, may live.
func (p *Process) LeaderDone() <-chan struct{} { return p.leaderDone }

// LeaderExit is how the server itself ended, once LeaderDone is closed.
func (p *Process) LeaderExit() *facts.Exit {
	<-p.leaderDone
	return p.leaderExit
}

// Done is closed when nothing of the tree is left and the exit is known.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the server ended, once Done is closed.
func (p *Process) Exit() *facts.Exit {
	<-p.done
	return p.exit
}

// Close lets go of stdin and stdout, when the process is done and nobody reads any more.
func (p *Process) Close() { p.closeOurs() }

// collect takes note of every child that ends, orphans of the tree included, until there is none.
func (p *Process) collect() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // no child is left, and so nothing below one
			p.end()
			return
		case pid == p.identity.PID:
			p.leaderExit = shim.ExitOf(status, time.Now())
			close(p.leaderDone)
			go p.clear()
		}
	}
}

// end says that nothing is left.
func (p *Process) end() {
	p.copied.Wait()
	p.exit = p.leaderExit
	if p.exit == nil { // somebody else has collected it
		p.exit = &facts.Exit{FinishedAt: time.Now().UTC().Round(0), Message: "it is not known how the server ended"}
		p.leaderExit = p.exit
		close(p.leaderDone)
	}
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	occupied.Store(false)
	close(p.done)
}

// send signals the tree, unless all that is below us belongs to the next server already.
func (p *Process) send(signal syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	return p.tree.Signal(signal)
}

// clear ends what is left after the server itself.
func (p *Process) clear() {
	if p.wait(5 * time.Millisecond) { // usually nothing is left: it is known at once
		return
	}
	_ = p.send(unix.SIGTERM)
	if !p.wait(leftoverGrace) {
		_ = p.Kill()
	}
}

// wait says whether the process was done before the time was over.
func (p *Process) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// Stop begins the ladder, once: the protocol's own way, then the end of its input, then the signal to the whole tree. It never kills.
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
		case <-ctx.Done(): // a writer that is stuck in a full pipe must not hold the ladder
			err = ctx.Err()
		case <-p.leaderDone:
		}
		cancel()
		// Who did not hear of it has nothing to end for yet.
		if err == nil && p.leaderEnds(rung(exitRung, grace)) {
			return
		}
	}
	_ = p.stdin.Close()
	if p.leaderEnds(rung(stdinRung, grace)) {
		return
	}
	_ = p.send(p.signal)
}

func (p *Process) leaderEnds(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.leaderDone:
		return true
	case <-timer.C:
		return false
	}
}

// Kill ends the whole tree with SIGKILL, and goes on until nothing of it is left. It does not wait for that.
func (p *Process) Kill() error {
	err := p.send(unix.SIGKILL)
	p.killing.Do(func() {
		go func() {
			for pause := 5 * time.Millisecond; !p.wait(pause); pause = min(2*pause, time.Second) {
				_ = p.send(unix.SIGKILL)
			}
		}()
	})
	return err
}
