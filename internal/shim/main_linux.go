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
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/statedir"
)

// File descriptors that the manager passes to the shim.
const (
	// lockFD is the open lock file, already locked. The lock is held as long as the shim lives.
	lockFD = 3
	// launchFD is an in-memory file that contains the Launch.
	launchFD = 4
)

type shim struct {
	launch   Launch
	identity Identity
	tree     Tree
	log      *os.File
	terminal *terminal
	// newScreen is for the terminal.
	newScreen NewScreen
	stdin     *os.File // write end of the pipe to the program; nothing is written to it
	status    chan unix.WaitStatus
	childs    chan struct{} // closed when no child is left
	listener  *net.UnixListener
	notices   sync.WaitGroup
	mu        sync.Mutex // guards identity
}

// Probe is the argument that makes the shim exit with 0 immediately, to test whether processes can be started in a cgroup.
const Probe = "--probe"

// Main runs berth-shim and returns its exit code. Without one of the mode arguments, it expects that the working directory is the directory of the UID, and
// that lockFD and launchFD are open.
func Main(args []string, newScreen NewScreen) int {
	if len(args) > 1 && args[1] == Probe {
		return 0
	}
	if len(args) > 2 && args[1] == Window {
		return lookThrough(args[2], args[3:])
	}
	// The shim must use as few resources as possible.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(40)
	if len(args) > 1 && args[1] == Exec {
		return complain(execOnce())
	}
	if strings.HasPrefix(args[0], WarmShimName) {
		if ready, err := await(args[0]); !ready {
			return complain(err)
		}
	}
	s := &shim{newScreen: newScreen, status: make(chan unix.WaitStatus, 1), childs: make(chan struct{})}
	if err := s.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-shim is started by berth, not by hand:", err)
		return 1
	}
	return complain(s.run())
}

// complain prints err and returns the exit code for it.
func complain(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-shim:", err)
		return 1
	}
	return 0
}

func (s *shim) prepare() error {
	var err error
	if s.launch, err = readLaunch(); err != nil {
		return err
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

// readLaunch reads the Launch from launchFD, and keeps the descriptors of the manager from the program.
func readLaunch() (launch Launch, err error) {
	unix.CloseOnExec(lockFD)
	unix.CloseOnExec(launchFD)
	memory := os.NewFile(launchFD, "launch")
	err = json.NewDecoder(memory).Decode(&launch)
	if err := errors.Join(err, memory.Close()); err != nil {
		return Launch{}, fmt.Errorf("read the program to start: %w", err)
	}
	return launch, nil
}

// outliveSignals makes this process the subreaper of its descendants and immune to the signals that a terminal or a tree-wide kill sends.
func outliveSignals() (procstat.Process, error) {
	// The signals are caught and dropped, not ignored: the workload would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return procstat.Process{}, fmt.Errorf("become the subreaper: %w", err)
	}
	return procstat.Identify(os.Getpid())
}

// run supervises one incarnation from start to end. It returns an error only if it cannot write the first identity or the End.
func (s *shim) run() error {
	defer s.notices.Wait()
	// The identity is written before the fork: a record without an identity therefore means that nothing was started.
	if err := statedir.WriteJSON(IdentityFile, &s.identity, false); err != nil {
		return err
	}
	if s.requested() != nil {
		return s.end(End{Exit: &facts.Exit{FinishedAt: time.Now(), Message: "the process was stopped before its program was executed"}})
	}
	if failed := s.start(); failed != nil {
		return s.end(End{Failure: failed})
	}
	if err := s.listen(); err != nil {
		_ = s.tree.Kill()
		s.reap()
		return s.end(End{Failure: failure(ReasonStartFailed, "cannot create the socket for attaching to the program: %v", err)})
	}
	defer func() { _ = s.listener.Close() }()
	if err := s.record(nil); err != nil {
		// The identity on disk has no PID of the program, so no manager could find the program again.
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
	end := End{Exit: exit}
	if s.terminal != nil {
		s.terminal.finish()
		end.Columns, end.Rows = s.terminal.device.Size()
	}
	// The log may have exceeded its limit since the last check.
	(&Puncher{File: s.log, Limit: s.launch.LogLimit}).Check(time.Now())
	return s.end(end)
}

// record writes the identity of the workload and notifies the manager.
func (s *shim) record(leaderExit *facts.Exit) error {
	s.mu.Lock()
	s.identity.LeaderExit = leaderExit
	identity := s.identity
	s.mu.Unlock()
	err := statedir.WriteJSON(IdentityFile, &identity, false)
	s.notices.Go(s.notify)
	return err
}

func (s *shim) snapshot() *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	identity := s.identity
	return &identity
}

// end writes the End. The manager reads it when the shim exits.
func (s *shim) end(end End) error {
	end.Version, end.Incarnation, end.Token = Version, s.identity.Incarnation, s.identity.Token
	if s.listener != nil {
		_ = s.listener.Close()
	}
	var err error
	// The write is retried for up to 5 s, because a full disk may have space again and the exit code is worth the wait. It is not synced: after a power failure
	// the process is known to be gone anyway.
	for range 50 {
		if err = statedir.WriteJSON(EndFile, &end, false); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	// Do not notify the manager here: it watches for the exit of this process. A notification would only make it observe a shim that is about to exit.
	return err
}

// notify notifies the manager that a file has changed. If no manager runs, no notification is needed: the next manager reads all files when it starts.
func (s *shim) notify() {
	for range 5 {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: eventsSocket, Net: "unixgram"})
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

// requested returns the request to stop this incarnation, or nil.
func (s *shim) requested() *Request {
	var request Request
	if found, err := statedir.ReadJSON(RequestFile, &request); !found || err != nil || request.Incarnation != s.identity.Incarnation {
		return nil
	}
	return &request
}

// obey carries out a request made while the program was starting, when the manager could not yet signal the program.
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

// reap reaps every child, including orphans of the tree, and keeps the status of the program itself.
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

// empty reports whether no process of the tree is left.
func (s *shim) empty() bool {
	select {
	case <-s.childs:
	default:
		return false
	}
	populated, err := Populated(s.tree.Cgroup)
	return s.tree.Cgroup == "" || (err == nil && !populated)
}

// clear terminates the processes that remain after the program itself exited.
func (s *shim) clear(exit *facts.Exit) {
	// Usually no process remains, and the reaper reports that immediately.
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
	var leftovers Leftovers
	for pause := 5 * time.Millisecond; !s.empty(); pause = min(2*pause, 200*time.Millisecond) {
		request := s.requested()
		if request != nil && request.Kill {
			_ = s.tree.Kill()
		} else {
			_ = leftovers.End(s.tree, request != nil)
		}
		select {
		case <-s.childs:
			// All remaining processes are in the cgroup but are not descendants of the shim.
			time.Sleep(min(pause, 20*time.Millisecond))
		case <-time.After(pause):
		}
	}
}

func (s *shim) punch() {
	p := Puncher{File: s.log, Limit: s.launch.LogLimit}
	for {
		time.Sleep(p.Check(time.Now()))
	}
}

// protect makes the OOM killer unlikely to choose the shim. The workload was forked earlier, so it does not inherit this protection.
func (s *shim) protect() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0)
}
