// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
)

// File descriptors that the manager hands to the shim.
const (
	// LockFD is the open lock file, locked already: the lock lives as long as the shim.
	LockFD = 3
	// LaunchFD is memory that holds the Launch.
	LaunchFD = 4
)

// leftoverGrace is how long what the program leaves behind has between SIGTERM and SIGKILL.
const leftoverGrace = 2 * time.Second

type shim struct {
	launch   Launch
	identity Identity
	tree     Tree
	log      *os.File
	terminal *terminal
	stdin    *os.File // the end of the pipe that is only held open
	status   chan unix.WaitStatus
	childs   chan struct{} // closed when no child is left
	listener *net.UnixListener
	notices  sync.WaitGroup
	answers  sync.RWMutex // held for reading while a call is answered
	mu       sync.Mutex   // guards identity
}

// Probe is the argument with which the shim only ends well: to try out whether processes can be started in a cgroup.
const Probe = "--probe"

// Main is berth-shim. It runs in the directory of the UID with the descriptors above, and gives the exit code.
func Main(args []string) int {
	if len(args) > 1 && args[1] == Probe {
		return 0
	}
	if len(args) > 2 && args[1] == Window {
		return lookThrough(args[2], args[3:])
	}
	// The holder of a process should cost next to nothing.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(40)
	if len(args) > 1 && args[1] == Exec {
		return complain(execOnce())
	}
	if strings.HasPrefix(args[0], SpareName) {
		if ready, err := await(args[0]); !ready {
			return complain(err)
		}
	}
	s := &shim{status: make(chan unix.WaitStatus, 1), childs: make(chan struct{})}
	if err := s.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-shim is started by berth, not by hand:", err)
		return 1
	}
	return complain(s.run())
}

// complain gives the exit code that goes with an error, which it says.
func complain(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-shim:", err)
		return 1
	}
	return 0
}

func (s *shim) prepare() error {
	unix.CloseOnExec(LockFD)
	unix.CloseOnExec(LaunchFD)
	memory := os.NewFile(LaunchFD, "launch")
	err := json.NewDecoder(memory).Decode(&s.launch)
	if err := errors.Join(err, memory.Close()); err != nil {
		return fmt.Errorf("read what to start: %w", err)
	}
	self, err := outliveSignals()
	if err != nil {
		return err
	}
	record := s.launch.Record
	s.identity = Identity{Version: Version, Incarnation: record.Incarnation, Token: record.Token, Shim: self}
	s.tree = Tree{Cgroup: record.Cgroup, Ancestor: self.PID, Mark: Mark(record.Token)}
	return nil
}

// outliveSignals makes this process the parent of all orphans below it, and immune to the signals that a terminal or a tree-wide kill sends.
func outliveSignals() (Process, error) {
	// Caught and dropped, not ignored: what is ignored would be ignored by the workload as well.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return Process{}, fmt.Errorf("become the subreaper: %w", err)
	}
	return Identify(os.Getpid())
}

// run holds one incarnation from its start to its end. An error means that not even that could be written down.
func (s *shim) run() error {
	defer s.notices.Wait()
	// Before the fork, so that whoever finds a record without an identity knows that nothing was ever started.
	if err := WriteFile(IdentityFile, &s.identity, false); err != nil {
		return err
	}
	if s.requested() != nil {
		return s.end(End{Exit: &facts.Exit{FinishedAt: time.Now(), Message: "it was stopped before the program was executed"}})
	}
	if failed := s.start(); failed != nil {
		return s.end(End{Failure: failed})
	}
	if err := s.listen(); err != nil {
		_ = s.tree.Kill()
		s.reap()
		return s.end(End{Failure: failure(ReasonStartFailed, "the socket to attach to the program could not be made: %v", err)})
	}
	defer func() { _ = s.listener.Close() }()
	if err := s.record(nil); err != nil {
		// Without a record nobody could find it again.
		_ = s.tree.Kill()
		fmt.Fprintln(os.Stderr, "berth-shim: record the process:", err)
	}
	go s.reap()
	go s.serve()
	go s.punch()
	s.protect()
	s.obey()

	exit := ExitOf(<-s.status, time.Now())
	s.clear(exit)
	if s.terminal != nil {
		s.terminal.finish()
	}
	// What was written since the last check is bounded as well.
	(&Puncher{File: s.log, Limit: s.launch.LogLimit}).Check(time.Now())
	defer s.settle()
	return s.end(End{Exit: exit})
}

// record writes who runs, and tells the manager.
func (s *shim) record(leaderExit *facts.Exit) error {
	s.mu.Lock()
	s.identity.LeaderExit = leaderExit
	identity := s.identity
	s.mu.Unlock()
	err := WriteFile(IdentityFile, &identity, false)
	s.notices.Go(s.notify)
	return err
}

func (s *shim) snapshot() *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	identity := s.identity
	return &identity
}

// end writes the last word. The manager learns of it when the shim is gone.
func (s *shim) end(end End) error {
	end.Version, end.Incarnation, end.Token = Version, s.identity.Incarnation, s.identity.Token
	if s.listener != nil {
		_ = s.listener.Close()
	}
	var err error
	// A full disk may have room again in a moment; the exit code is worth waiting for. It is not worth waiting for a disk to sync: after a power
	// failure everything is known to be gone anyway.
	for range 50 {
		if err = WriteFile(EndFile, &end, false); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	// The manager isn't told here: it watches for the end of this process, and a look before that would only see one that is about to end.
	return err
}

// notify tells the manager that something has changed. Without a manager nobody needs to know: the next one looks at everything.
func (s *shim) notify() {
	for range 5 {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: EventsSocket, Net: "unixgram"})
		if err != nil {
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = conn.Write([]byte(s.launch.Record.UID))
		_ = conn.Close()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// requested gives the request to end this incarnation, if there is one.
func (s *shim) requested() *Request {
	var request Request
	if found, err := ReadFile(RequestFile, &request); !found || err != nil || request.Incarnation != s.identity.Incarnation {
		return nil
	}
	return &request
}

// obey carries out a request that came while the program was being started: the manager could not signal what was not recorded yet.
func (s *shim) obey() {
	switch request := s.requested(); {
	case request == nil:
	case request.Kill:
		_ = s.tree.Kill()
	default:
		number, ok := SignalNumber(s.launch.Record.StopSignal)
		if !ok {
			number = unix.SIGTERM
		}
		_ = s.tree.Signal(number)
	}
}

// reap collects every child, orphans of the tree included, and keeps the status of the program itself.
func (s *shim) reap() {
	defer close(s.childs)
	reapAll(func(pid int, status unix.WaitStatus) {
		if pid == s.identity.Child.PID {
			s.status <- status
		}
	})
}

// reapAll reaps children until none is left.
func reapAll(reaped func(pid int, status unix.WaitStatus)) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return // no child is left
		default:
			reaped(pid, status)
		}
	}
}

// empty says whether nothing of the tree is left.
func (s *shim) empty() bool {
	select {
	case <-s.childs:
	default:
		return false
	}
	populated, err := Populated(s.tree.Cgroup)
	return s.tree.Cgroup == "" || (err == nil && !populated)
}

// clear ends what is left after the program itself.
func (s *shim) clear(exit *facts.Exit) {
	// Usually nothing is left: the reaper finds out at once.
	select {
	case <-s.childs:
	case <-time.After(5 * time.Millisecond):
	}
	if s.empty() {
		return
	}
	if s.requested() == nil {
		exit.Left = s.tree.names()
	}
	_ = s.record(exit)
	if request := s.requested(); request == nil || !request.Kill {
		_ = s.tree.Signal(unix.SIGTERM)
	}
	deadline := time.Now().Add(leftoverGrace)
	for pause := 5 * time.Millisecond; !s.empty(); pause = min(2*pause, 200*time.Millisecond) {
		request := s.requested()
		if time.Now().After(deadline) || (request != nil && request.Kill) {
			_ = s.tree.Kill()
		}
		select {
		case <-s.childs:
			// Nothing to wait for but processes that left the tree and stayed in the cgroup.
			time.Sleep(min(pause, 20*time.Millisecond))
		case <-time.After(pause):
		}
	}
}

// settle lets a call that is being answered get its answer, though not for long.
func (s *shim) settle() {
	answered := make(chan struct{})
	go func() {
		s.answers.Lock() // and keeps it: nothing is answered any more
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(time.Second):
	}
}

func (s *shim) punch() {
	p := Puncher{File: s.log, Limit: s.launch.LogLimit}
	for {
		time.Sleep(p.Check(time.Now()))
	}
}

// protect makes it unlikely that the kernel picks the shim when memory is short. The workload was started before and is not protected.
func (s *shim) protect() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0)
}
