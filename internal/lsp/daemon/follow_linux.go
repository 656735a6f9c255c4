// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/server"
)

const (
	// samplePeriod is the interval at which the memory of the server is measured. A restart because of memory waits while a request older than busyOldest is
	// pending.
	samplePeriod = 3 * time.Second
	busyOldest   = time.Second
)

// follow waits for the exit of an incarnation and reports it.
func (p *program) follow(incarnation int64, process *server.Process) {
	defer p.following.Done()
	<-process.LeaderDone()
	p.mu.Lock()
	ending := endingOf(process.LeaderExit(), p.report.StopSent || p.killed)
	p.mu.Unlock()
	p.mux.Detach(incarnation, ending) // it reads what the server has written before it exited
	p.mu.Lock()
	p.report.LeaderExit = process.LeaderExit()
	p.mu.Unlock()
	select {
	case <-process.Done():
	default:
		p.saveState()
		p.notifyUrgent()
		<-process.Done()
	}
	process.Close()
	p.settle(process)
	exit := process.Exit()
	p.log("incarnation %d exited: %s", incarnation, describe(exit))
	p.notifyUrgent()
}

// endingOf returns why a server exited. asked reports that Berth stopped it. A shell that started the server reports a signal as an exit code above 128.
func endingOf(exit *facts.Exit, asked bool) lsp.Ending {
	switch {
	case asked:
		return lsp.Asked
	case exit == nil || !exit.Known:
		return lsp.Crashed
	}
	for signal, number := range map[string]int32{"SIGHUP": 1, "SIGINT": 2, "SIGKILL": 9, "SIGTERM": 15} {
		if exit.Signal == signal || exit.Signal == "" && exit.Code == 128+number {
			return lsp.Killed
		}
	}
	return lsp.Crashed
}

// settle records that no process of an incarnation is left. It writes the state file first, so that later managers know the exit.
func (p *program) settle(process *server.Process) {
	p.storing.Lock()
	defer p.storing.Unlock()
	p.mu.Lock()
	ended := p.report
	p.mu.Unlock()
	ended.Phase, ended.Exit, ended.LeaderExit, ended.MemoryBytes = facts.Exited, process.Exit(), nil, 0
	p.write(ended)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report, p.process, p.tight = ended, nil, ""
}

// saveState writes the state of the server process to the state file.
func (p *program) saveState() {
	p.storing.Lock()
	defer p.storing.Unlock()
	p.mu.Lock()
	report := p.report
	p.mu.Unlock()
	p.write(report)
}

func (p *program) write(report lsp.Report) {
	if err := p.store(report); err != nil {
		p.log("cannot record the state of the server: %v", err)
	}
}

func describe(exit *facts.Exit) string {
	switch {
	case exit == nil || !exit.Known:
		return "exit status unknown"
	case exit.Signal != "":
		return "terminated by " + exit.Signal
	default:
		return fmt.Sprintf("exit code %d", exit.Code)
	}
}

// Report implements control.Handler.
func (p *program) Report() lsp.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	report := p.report
	p.mux.Fill(&report)
	if p.tight != "" && !report.Restart {
		report.Unhealthy, report.Message = lsp.ReasonMemoryLimit, p.tight
		report.Restart = quiet(report)
	}
	return report
}

// quiet reports whether no pending request is older than busyOldest, so that a restart is acceptable.
func quiet(report lsp.Report) bool {
	return report.OldestRequest.IsZero() || time.Since(report.OldestRequest) < busyOldest
}

// Changes implements control.Handler.
func (p *program) Changes() <-chan struct{} { return p.changes }

// Urgent implements control.Handler.
func (p *program) Urgent() <-chan struct{} { return p.urgent }

func (p *program) changed() { poke(p.changes) }

func (p *program) notifyUrgent() { poke(p.urgent) }

func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// cpu returns the CPU time of the server's tree.
func (p *program) cpu() time.Duration {
	p.mu.Lock()
	process := p.process
	p.mu.Unlock()
	if process == nil {
		return 0
	}
	_, used, _ := process.Usage() // after an error, used is 0, which never counts as progress
	return used
}

// sample measures the memory of the server every samplePeriod, and returns the unused memory of the multiplexer to the system when clients pause.
func (p *program) sample(ctx context.Context) {
	var frames int64
	returned := true
	for ctx.Err() == nil {
		p.measure()
		var now lsp.Report
		p.mux.Fill(&now)
		switch {
		case now.Counters.Frames != frames:
			frames, returned = now.Counters.Frames, false
		case !returned:
			if residentHeap() > keptHeap {
				debug.FreeOSMemory()
			}
			returned = true
		}
		pause(ctx, samplePeriod)
	}
}

// keptHeap is how much memory of its heap the multiplexer may keep in a pause, in bytes. Without a limit it would keep what a large text once needed, because its
// heap grows too little afterwards for the next garbage collection.
const keptHeap = 4 << 20

// residentHeap returns how much memory of the system the heap of this program uses, in bytes.
func residentHeap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.HeapIdle - m.HeapReleased
}

func (p *program) measure() {
	p.mu.Lock()
	process := p.process
	p.mu.Unlock()
	if process == nil {
		return
	}
	memory, _, err := process.Usage()
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != process {
		return
	}
	p.report.MemoryBytes = memory
	limit := p.launch.Config.Limits.MemoryBytes
	if limit > 0 && memory > limit {
		p.tight = fmt.Sprintf("the server uses %d MiB of memory, and the limit is %d MiB", memory>>20, limit>>20)
		p.notifyUrgent()
		return
	}
	p.tight = ""
	p.changed()
}
