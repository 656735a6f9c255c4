// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// world models one object: what the API server stores, which processes run, and a manager between its read and its action. It is small enough to walk all of
// its states. Its runtime is naive on purpose: it carries out every start, so only Next and the record prevent two incarnations from running.
type world struct {
	desired Desired
	deleted bool
	status  v1alpha1.ProcessStatus
	port    int // the part of the status that the kind sets before a start, such as a port
	version int
	gone    bool // the finalizer was removed

	// once is the run, if the process runs once. ended is the status with which its outcome was recorded.
	once  *Once
	ended v1alpha1.ProcessStatus

	// freePort is the port that the kind would choose now. It differs from port while the port in the status is unavailable.
	freePort int

	// slow reports that a process cannot receive signals at first, and that the backend then defers its stop.
	slow bool

	// obstructed reports that a check of the next start always fails. A start that is requested anyway is carried out.
	obstructed bool

	// hidesOrigin reports that the backend does not return what an incarnation was started with.
	hidesOrigin bool

	// unasked reports that nothing requests that failures are forgotten.
	unasked bool

	processes []process
	now       time.Time
	manager   manager
	deposed   manager // a replaced manager that still finishes its last steps
	budget    budget
}

// process is one started incarnation.
type process struct {
	number   int64
	phase    facts.Phase
	stopSent bool
	deaf     bool // it cannot receive signals yet
	deferred bool // a stop was deferred
	ready    bool
	exit     facts.Exit
	started  time.Time
	origin   facts.Origin
	port     int
	asked    bool // a status contained the request to stop it
	seen     bool // a status contained it as the running process
}

// manager is the state of a manager between two calls: it has read (and observed), or it has written and will act next. A crash clears it.
type manager struct {
	at       managerPhase
	version  int
	deleted  bool
	desired  Desired
	status   v1alpha1.ProcessStatus
	observed Observed
	port     int
	step     Step
}

// restartToken returns the token that a start carries as its origin: a removed token leaves the one that was answered.
func (m *manager) restartToken() string {
	return cmp.Or(m.desired.RestartToken, m.step.Status.ObservedRestartToken)
}

type managerPhase int

const (
	idle managerPhase = iota
	hasRead
	hasWritten
)

// budget bounds how often each kind of trouble happens on one path.
type budget struct {
	toggles, sleeps, restarts, specs, edits, resets, deletes, exits, failedStarts, crashes, leaders, ports, resumes int
}

// newSession returns a world whose process has a session, and a command that resumes it.
func newSession(b budget, policy v1alpha1.RestartPolicy) world {
	w := newWorld(b, policy)
	w.desired.SessionID, w.desired.ResumeHash = "session", "0"
	w.unasked = b.toggles+b.sleeps+b.restarts+b.specs+b.edits+b.resets+b.resumes == 0
	return w
}

// newRun returns a world whose process runs once.
func newRun(b budget) world {
	w := newWorld(b, v1alpha1.RestartNever)
	w.desired.UpdatePolicy, w.desired.Reserve, w.desired.Probed = v1alpha1.UpdateOnRestart, false, false
	w.once = &Once{}
	return w
}

func newWorld(b budget, policy v1alpha1.RestartPolicy) world {
	return world{
		desired: Desired{UID: "uid", Generation: 1, State: DesiredRunning, SpecHash: "0", RestartToken: "0", ResetToken: "0", RestartPolicy: policy,
			UpdatePolicy: v1alpha1.UpdateRecreate, Grace: 10 * time.Second, Probed: true, Reserve: true, KeepsPreviousExit: true,
			Backoff: Backoff{Initial: time.Second, Max: time.Minute, ResetAfter: time.Minute},
			Breaker: Breaker{Threshold: 2, Window: 3 * time.Minute, CoolDown: 10 * time.Minute}},
		now: start, budget: b,
	}
}

// move is one possible step of the world; do reports whether it was possible.
type move struct {
	name string
	do   func(*world) bool
}

// moves lists all possible steps. Each may happen at any time.
var moves = []move{
	{"state is toggled", func(w *world) bool {
		return spend(&w.budget.toggles) && !w.deleted && w.edit(func() {
			w.desired.Generation++
			switch {
			case w.once != nil: // a run that is cancelled stays so
				w.desired.State = DesiredStopped
			case w.desired.State == DesiredRunning:
				w.desired.State = DesiredStopped
			default:
				w.desired.State = DesiredRunning
			}
		})
	}},
	{"process falls out of use or is needed again", func(w *world) bool {
		return w.desired.State != DesiredStopped && spend(&w.budget.sleeps) && !w.deleted && w.edit(func() {
			if w.desired.State == DesiredRunning {
				w.desired.State = DesiredAsleep
			} else {
				w.desired.State = DesiredRunning
			}
		})
	}},
	{"restart is requested", func(w *world) bool {
		return spend(&w.budget.restarts) && !w.deleted && w.edit(func() { w.desired.RestartToken += "+"; w.desired.Generation++ })
	}},
	{"restart token is removed", func(w *world) bool {
		return w.desired.RestartToken != "" && spend(&w.budget.restarts) && !w.deleted && w.edit(func() { w.desired.RestartToken = ""; w.desired.Generation++ })
	}},
	{"spec is changed", func(w *world) bool {
		return spend(&w.budget.specs) && !w.deleted && w.edit(func() { w.desired.SpecHash += "+"; w.desired.Generation++ })
	}},
	{"spec is changed without the need for a restart", func(w *world) bool {
		return spend(&w.budget.edits) && !w.deleted && w.edit(func() { w.desired.Generation++ })
	}},
	{"command that resumes the session is changed", func(w *world) bool {
		return w.desired.SessionID != "" && spend(&w.budget.resumes) && !w.deleted && w.edit(func() { w.desired.ResumeHash += "+"; w.desired.Generation++ })
	}},
	{"reset is requested", func(w *world) bool {
		return spend(&w.budget.resets) && !w.deleted && w.edit(func() { w.desired.ResetToken += "+"; w.desired.Generation++ })
	}},
	{"port in the status becomes unavailable", func(w *world) bool {
		w.freePort++
		return w.freePort == w.port+1 && spend(&w.budget.ports)
	}},
	{"object is deleted", func(w *world) bool {
		return spend(&w.budget.deletes) && !w.deleted && w.edit(func() { w.deleted = true })
	}},
	{"process executes", func(w *world) bool {
		return w.changeNewest(facts.Starting, func(p *process) { p.phase, p.started = facts.Running, w.now })
	}},
	{"process cannot be executed", func(w *world) bool {
		return w.changeNewest(facts.Starting, func(p *process) { p.phase = facts.Failed }) && spend(&w.budget.failedStarts)
	}},
	{"process can receive signals", func(w *world) bool {
		return w.changeNewest(facts.Running, func(p *process) { p.deaf = false })
	}},
	{"process becomes ready", func(w *world) bool {
		return w.changeNewest(facts.Running, func(p *process) { p.ready = true })
	}},
	{"process exits 0", func(w *world) bool { return w.exitNewest(facts.Exit{Known: true}) && spend(&w.budget.exits) }},
	{"process exits 1", func(w *world) bool { return w.exitNewest(facts.Exit{Known: true, Code: 1}) && spend(&w.budget.exits) }},
	{"process is lost", func(w *world) bool {
		return w.exitNewest(facts.Exit{Known: true, Lost: true}) && spend(&w.budget.exits)
	}},
	{"process obeys its stop", func(w *world) bool {
		return w.changeNewest(facts.Running, func(p *process) {
			if p.stopSent {
				w.exitProcess(p, facts.Exit{Known: true, Signal: "SIGTERM"})
			}
		}) && w.processes[len(w.processes)-1].phase == facts.Exited
	}},
	{"time passes", (*world).passTime},
	{"a minute passes", func(w *world) bool {
		w.now = w.now.Add(61 * time.Second)
		return len(w.processes) > 0
	}},
	{"manager reads", (*world).read},
	{"manager writes", (*world).write},
	{"manager acts", (*world).act},
	{"manager crashes", func(w *world) bool {
		if w.manager.at == idle {
			return false
		}
		w.manager = manager{}
		return spend(&w.budget.crashes)
	}},
	{"manager is replaced while it hangs", func(w *world) bool {
		if w.manager.at == idle || w.deposed.at != idle {
			return false
		}
		w.deposed, w.manager = w.manager, manager{}
		return spend(&w.budget.leaders)
	}},
	{"replaced manager writes", func(w *world) bool { return w.asDeposed((*world).write) }},
	{"replaced manager acts", func(w *world) bool { return w.asDeposed((*world).act) }},
}

// asDeposed runs the function do with the replaced manager, except for an object that is being deleted: then the lock of the state directory prevents a second
// manager from acting.
func (w *world) asDeposed(do func(*world) bool) bool {
	if w.deleted {
		return false
	}
	w.manager, w.deposed = w.deposed, w.manager
	done := do(w)
	w.manager, w.deposed = w.deposed, w.manager
	return done
}

func spend(budget *int) bool {
	*budget--
	return *budget >= 0
}

func (w *world) edit(change func()) bool {
	if w.gone {
		return false
	}
	change()
	w.version++
	return true
}

// changeNewest applies change to the newest process if it is in the given phase. It reports whether the process has changed.
func (w *world) changeNewest(phase facts.Phase, change func(*process)) bool {
	if len(w.processes) == 0 {
		return false
	}
	newest := &w.processes[len(w.processes)-1]
	if newest.phase != phase {
		return false
	}
	before := *newest
	change(newest)
	return *newest != before
}

func (w *world) exitNewest(exit facts.Exit) bool {
	return w.changeNewest(facts.Running, func(p *process) { w.exitProcess(p, exit) })
}

func (w *world) exitProcess(p *process, exit facts.Exit) {
	exit.FinishedAt = w.now
	p.phase, p.exit = facts.Exited, exit
}

// passTime advances the clock to the next time in the record.
func (w *world) passTime() bool {
	var times []time.Time
	if w.status.NextRestartTime != nil {
		times = append(times, w.status.NextRestartTime.Time)
	}
	if w.status.Stopping != nil {
		times = append(times, w.status.Stopping.KillTime.Time)
	}
	if breaker := w.status.Breaker; breaker != nil && breaker.State == v1alpha1.BreakerOpen {
		times = append(times, breaker.OpenTime.Add(w.desired.Breaker.CoolDown))
	}
	if n := len(w.processes); n > 0 && w.once != nil {
		times = append(times, w.processes[n-1].started.Add(recordDelay))
	}
	times = slices.DeleteFunc(times, func(t time.Time) bool { return !t.After(w.now) })
	if len(times) == 0 {
		return false
	}
	w.now = slices.MinFunc(times, time.Time.Compare)
	return true
}

func (w *world) read() bool {
	if w.manager.at != idle || w.gone {
		return false
	}
	desired := w.desired
	desired.Once = w.once
	if w.once != nil && w.once.Outcome != "" {
		desired.State = DesiredStopped // as StrategyRuns do
	}
	if w.deleted {
		desired.State = DesiredDeleted
	}
	w.manager = manager{at: hasRead, version: w.version, deleted: w.deleted, desired: desired, status: w.status, observed: w.observe(), port: w.port}
	if desired.State == DesiredRunning && w.countLive() == 0 { // as process.Kind.Prepare does
		w.manager.port = w.freePort
		w.manager.desired.RecordFirst = w.port != w.freePort
	}
	return true
}

func (w *world) observe() Observed {
	var o Observed
	for _, p := range w.processes {
		incarnation := facts.Incarnation{Number: p.number, Phase: p.phase, StopSent: p.stopSent, StopDeferred: p.deferred}
		if !w.hidesOrigin {
			incarnation.Origin = p.origin
		}
		switch p.phase {
		case facts.Running:
			incarnation.PID, incarnation.StartedAt = p.number, p.started
			ready := p.ready
			o.Ready = &ready
		case facts.Exited:
			exit := p.exit
			incarnation.Exit = &exit
		case facts.Failed:
			incarnation.StartError = &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound}
		}
		o.Incarnations = append(o.Incarnations, incarnation)
	}
	return o
}

// next is the decision function that the explorer calls; the mutation tests replace it with a broken variant.
var next = Next

// write decides and writes as the reconcile loop does: with an optimistic lock. If the status need not be written, the loop reads the object again before
// it acts, so write also requires an unchanged version in this case.
func (w *world) write() bool {
	m := &w.manager
	if m.at != hasRead {
		return false
	}
	step := next(m.desired, m.status, m.observed, w.now)
	if step.CheckStart && w.obstructed {
		m.observed.StartChecked, m.observed.StartFailure = true, &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing, Message: "the directory does not exist"}
		step = next(m.desired, m.status, m.observed, w.now)
	}
	if step.PreStart { // a pre-start takes place even if the object has changed since the read
		w.manager = manager{at: hasWritten, version: m.version, desired: m.desired, step: step, port: m.port}
		return true
	}
	if m.version != w.version || step.Action == Recheck {
		w.manager = manager{}
		return true
	}
	if w.once != nil && step.Outcome != w.once.Outcome {
		w.once, w.ended = &Once{Outcome: step.Outcome, FinishTime: w.now}, step.Status
	}
	if !apiequality.Semantic.DeepEqual(step.Status, w.status) || m.port != w.port {
		w.status, w.port = step.Status, m.port
		w.version++
		w.markProcesses()
	}
	if step.Action == None {
		w.manager = manager{}
		return true
	}
	w.manager = manager{at: hasWritten, version: w.version, desired: m.desired, step: step, port: m.port}
	return true
}

// markProcesses marks the processes that the new status contains.
func (w *world) markProcesses() {
	for i := range w.processes {
		p := &w.processes[i]
		p.asked = p.asked || w.status.Stopping != nil && w.status.Stopping.Incarnation == p.number
		p.seen = p.seen || w.status.Process != nil && w.status.Process.Incarnation == p.number
	}
}

func (w *world) act() bool {
	m := w.manager
	if m.at != hasWritten {
		return false
	}
	w.manager = manager{}
	switch m.step.Action {
	case StartProcess:
		if w.find(m.step.Incarnation) == nil {
			origin := facts.Origin{SpecHash: m.desired.SpecHash, RestartToken: m.restartToken(), SessionStart: string(m.step.SessionStart), ResumeHash: m.desired.ResumeHash}
			w.processes = append(w.processes, process{number: m.step.Incarnation, phase: facts.Starting, origin: origin, port: m.port, deaf: w.slow})
		}
	case StopProcess:
		if p := w.find(m.step.Incarnation); p != nil && p.phase == facts.Running {
			p.stopSent, p.deferred = !p.deaf, p.deaf
		}
	case KillProcess:
		if p := w.find(m.step.Incarnation); p != nil && (p.phase == facts.Running || p.phase == facts.Starting) {
			w.exitProcess(p, facts.Exit{Known: true, Signal: "SIGKILL"})
		}
	case Forget:
		if w.countLive() == 0 {
			w.processes = nil
			w.gone = m.step.Released && m.version == w.version
		}
	}
	return true
}

func (w *world) find(number int64) *process {
	for i := range w.processes {
		if w.processes[i].number == number {
			return &w.processes[i]
		}
	}
	return nil
}

func (w *world) countLive() (live int) {
	for _, p := range w.processes {
		if p.phase == facts.Starting || p.phase == facts.Running {
			live++
		}
	}
	return live
}

func (w *world) clone() world {
	c := *w
	c.processes = slices.Clone(w.processes)
	return c // Next copies a status and never changes it in place
}

var seed = maphash.MakeSeed()

// key is equal for equivalent worlds: times are relative to now, and rounded to the precision that affects decisions.
func (w *world) key() uint64 {
	var b strings.Builder
	w.writeStatusKey(&b, &w.status)
	fmt.Fprint(&b, w.desired.State, w.desired.SpecHash, w.desired.RestartToken, w.desired.ResetToken, w.desired.ResumeHash, w.deleted, w.gone, w.budget,
		w.desired.Generation == w.status.ObservedGeneration, w.port == w.freePort)
	for _, p := range w.processes {
		fmt.Fprint(&b, p.number, p.phase, p.stopSent, p.deaf, p.deferred, p.ready, p.asked, p.seen, p.origin, p.port == w.port, p.exit.Code, p.exit.Signal, w.ageBucket(p.exit.FinishedAt), w.ageBucket(p.started), w.desired.SessionID != "" && p.refused())
	}
	if w.once != nil {
		fmt.Fprint(&b, "once", w.once.Outcome)
		for _, p := range w.processes {
			fmt.Fprint(&b, p.started.Add(recordDelay).After(w.now))
		}
	}
	w.writeManagerKey(&b, &w.manager)
	w.writeManagerKey(&b, &w.deposed)
	return maphash.String(seed, b.String())
}

func (w *world) writeManagerKey(b *strings.Builder, m *manager) {
	fmt.Fprint(b, "|", m.at, m.port-w.port)
	switch m.at {
	case hasRead:
		fmt.Fprint(b, m.version == w.version)
		if step := next(m.desired, m.status, m.observed, w.now); step.PreStart {
			fmt.Fprint(b, "ahead", step.Incarnation, step.SessionStart, m.desired.SpecHash, m.restartToken(), m.desired.ResumeHash)
		}
		if m.version == w.version {
			for _, i := range m.observed.Incarnations {
				fmt.Fprint(b, i.Number, i.Phase, i.StopSent, i.StopDeferred, m.observed.Ready != nil && *m.observed.Ready)
			}
		}
	case hasWritten:
		fmt.Fprint(b, m.version == w.version, m.step.Action, m.step.Incarnation, m.step.SessionStart, m.desired.SpecHash, m.restartToken(), m.desired.ResumeHash)
	}
}

func (w *world) writeStatusKey(b *strings.Builder, s *v1alpha1.ProcessStatus) {
	fmt.Fprint(b, s.Incarnation, s.ReservedIncarnation-s.Incarnation, s.SpecHash, s.ObservedRestartToken, s.ObservedResetToken, s.Failures)
	if s.Resume != nil {
		fmt.Fprint(b, "r", *s.Resume)
	}
	if s.Process != nil {
		fmt.Fprint(b, "p", s.Process.Incarnation)
	}
	if s.Stopping != nil {
		fmt.Fprint(b, "s", s.Stopping.Incarnation, s.Stopping.Reason, w.ageBucket(s.Stopping.KillTime.Time))
	}
	if s.LastExit != nil {
		fmt.Fprint(b, "e", s.LastExit.Incarnation, s.LastExit.Reason)
	}
	if s.NextRestartTime != nil {
		fmt.Fprint(b, "n", w.ageBucket(s.NextRestartTime.Time))
	}
	if s.Breaker != nil {
		fmt.Fprint(b, "b", s.Breaker.State, len(s.Breaker.FailureTimes))
	}
	for _, c := range s.Conditions {
		if c.Status == metav1.ConditionTrue {
			fmt.Fprint(b, c.Type[:4], c.Reason)
		}
	}
}

// ageBucket classifies a time: unset, in the future, or the number of half minutes ago (at most 4).
func (w *world) ageBucket(t time.Time) int {
	if t.IsZero() {
		return -99
	}
	if t.After(w.now) {
		return -1
	}
	return min(int(w.now.Sub(t)/(30*time.Second)), 4)
}
