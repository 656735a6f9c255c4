// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/mux"
	"github.com/berth-dev/berth/internal/lsp/server"
	"github.com/berth-dev/berth/internal/procstat"
)

// defaultGrace is the grace period of a launch without one.
const defaultGrace = 10 * time.Second

// program is the multiplexer and its server. It is the handler of the control socket.
type program struct {
	store           func(lsp.Report) error
	stderr          *os.File
	mux             *mux.Mux
	changes, urgent chan struct{}

	quitting sync.Once
	quit     chan struct{}

	following sync.WaitGroup // calls of follow

	// storing serializes writes of the state file.
	storing sync.Mutex

	mu     sync.Mutex
	reason string // why the multiplexer quits
	// report holds the state of the server process; Report adds what the mux knows.
	report  lsp.Report
	process *server.Process // nil if no process is alive
	launch  lsp.Launch      // without its environment
	killed  bool
	leaving bool // the multiplexer is about to exit and starts no more servers
	// tight is the message for a server that exceeds its memory limit, or empty.
	tight string
}

// Do implements control.Handler.
func (p *program) Do(command lsp.Command) lsp.Answer {
	switch command.Verb {
	case lsp.Start:
		return p.start(command.Launch)
	case lsp.Stop:
		p.stop(command)
	case lsp.Kill:
		if err := p.kill(command.Incarnation); err != nil {
			return refuse(lsp.CodeUnavailable, "%v", err)
		}
	case lsp.SetFolders:
		p.mux.SetFolders(command.Folders)
	case lsp.Quit:
		return p.leave(command.Reason)
	default:
		return refuse(lsp.CodeInvalid, "unknown command %q; the multiplexer uses protocol version %d", command.Verb, lsp.Protocol)
	}
	return lsp.Answer{}
}

func refuse(code, format string, args ...any) lsp.Answer {
	return lsp.Answer{Code: code, Error: fmt.Sprintf(format, args...)}
}

// current returns the process of an incarnation, or nil if it is not alive.
func (p *program) current(incarnation int64) *server.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report.Incarnation != incarnation {
		return nil
	}
	return p.process
}

// start starts an incarnation. Commands are serialized, so no other start runs concurrently.
func (p *program) start(launch *lsp.Launch) lsp.Answer {
	if launch == nil || launch.Incarnation <= 0 {
		return refuse(lsp.CodeInvalid, "a start requires a command and an incarnation greater than 0")
	}
	p.mu.Lock()
	before, alive, leaving := p.report.Incarnation, p.process != nil, p.leaving
	p.mu.Unlock()
	switch {
	case leaving:
		return refuse(lsp.CodeOldAlive, "the multiplexer is shutting down")
	case launch.Incarnation < before:
		return refuse(lsp.CodeStale, "incarnation %d was already started", before)
	case launch.Incarnation == before:
		return lsp.Answer{}
	case alive:
		return refuse(lsp.CodeOldAlive, "incarnation %d is still running; stop it first", before)
	}
	next := lsp.Report{Protocol: lsp.Protocol, Incarnation: launch.Incarnation, Phase: facts.Starting}
	if err := p.store(next); err != nil {
		return refuse(lsp.CodeUnavailable, "record the start: %v", err)
	}
	p.mux.Configure(launch.Config)
	if launch.Inherit {
		launch.Env = append(own(os.Environ()), launch.Env...)
	}
	process, failed := server.Start(*launch, p.stderr)
	p.recordStart(next, launch, process, failed)
	return lsp.Answer{}
}

// own returns an environment without the variables that Berth has set for the multiplexer.
func own(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool { return strings.HasPrefix(variable, "BERTH_") })
}

// recordStart records and reports the result of a start.
func (p *program) recordStart(report lsp.Report, launch *lsp.Launch, process *server.Process, failed *facts.StartError) {
	if failed != nil {
		report.Phase, report.StartError = facts.Failed, failed
		p.log("incarnation %d could not be started: %s", launch.Incarnation, failed.Message)
	} else {
		report.Phase, report.StartedAt = facts.Running, process.StartedAt.UTC().Round(0)
		report.PID, report.StartTicks = int64(process.Identity.PID), int64(process.Identity.Ticks)
		report.BootID, _ = procstat.BootID()
		p.log("incarnation %d of the server is running (process %d)", launch.Incarnation, report.PID)
	}
	p.mu.Lock()
	p.report, p.process, p.killed, p.tight = report, process, false, ""
	p.launch = *launch
	if process != nil {
		p.following.Add(1)
	}
	p.launch.Env, p.launch.Grace = nil, cmp.Or(max(launch.Grace, 0), defaultGrace)
	p.mu.Unlock()
	p.saveState()
	if process != nil {
		p.mux.Attach(launch.Incarnation, process.Stdin, process.Stdout)
		go p.follow(launch.Incarnation, process)
	}
	p.notifyUrgent()
}

// stop starts a graceful stop of the server and does not wait for its exit.
func (p *program) stop(command lsp.Command) {
	process := p.current(command.Incarnation)
	if process == nil {
		return
	}
	p.mu.Lock()
	p.report.StopSent = true
	grace := p.launch.Grace
	p.mu.Unlock()
	p.saveState()
	p.mux.Hold(cmp.Or(command.Reason, "the language server is being restarted"))
	process.Stop(p.mux.Shutdown, grace)
}

func (p *program) kill(incarnation int64) error {
	process := p.current(incarnation)
	if process == nil {
		return nil
	}
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	return process.Kill()
}

// leave makes the multiplexer exit if no server is alive, and returns an error otherwise.
func (p *program) leave(reason string) lsp.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		return refuse(lsp.CodeOldAlive, "incarnation %d is still running; stop it first", p.report.Incarnation)
	}
	p.leaving = true
	p.reason = cmp.Or(p.reason, reason)
	p.quitting.Do(func() { close(p.quit) })
	return lsp.Answer{}
}

func (p *program) farewell() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.reason, "the language server is stopped")
}

// terminate stops the server when the multiplexer exits for a reason other than Quit: first gracefully, then with SIGKILL.
func (p *program) terminate() {
	p.mu.Lock()
	p.leaving = true
	process, incarnation, grace := p.process, p.report.Incarnation, p.launch.Grace
	p.mu.Unlock()
	if process == nil {
		return
	}
	p.stop(lsp.Command{Incarnation: incarnation, Reason: "the language server is stopped"})
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-process.Done():
	case <-timer.C:
		_ = p.kill(incarnation)
	}
	p.following.Wait() // follow records the exit
}
