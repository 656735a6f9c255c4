// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	// connections is the maximum number of open connections of one group of users. Further ones are closed.
	connections = 64
	// callTime bounds one connection.
	callTime = 2 * time.Second
)

// answer is the response to a report. Refused is empty if the report was accepted.
type answer struct {
	Refused string `json:"refused,omitempty"`
}

// Start serves until the context is done. If it cannot listen, it logs that and returns nil, because everything else works without hooks.
func (s *Server) Start(ctx context.Context) error {
	listener, err := s.listen()
	if err != nil {
		s.Log.Error(err, "Cannot receive reports of hooks", "socket", filepath.Join(s.Dir, SocketFile))
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	defer s.clean()
	tasks, slots := background.New(), map[group]chan struct{}{}
	for _, of := range []group{manager, programs, strangers} {
		slots[of] = make(chan struct{}, connections)
	}
	defer tasks.Close()
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			s.Log.Error(err, "Cannot accept a report of a hook")
			select {
			case <-ctx.Done():
			case <-time.After(callTime): // the limit of open files, for example
			}
			continue
		}
		slots := slots[s.groupOf(conn)]
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				defer func() { _ = conn.Close() }()
				if leave, entered := tasks.Enter(); entered {
					defer leave()
					s.serve(ctx, conn)
				}
			}()
		default:
			_ = conn.Close()
		}
	}
}

// group is a group of users that has its own connections, so that other users of the machine cannot occupy those of the agents. There is no limit for each
// single user, because a user can have thousands of subordinate user IDs.
type group int

const (
	manager   group = iota // root and the user of the manager
	programs               // the user that programs run as
	strangers              // all other users
)

func (s *Server) groupOf(conn *net.UnixConn) group {
	switch user, err := userOf(conn); {
	case err != nil:
		return strangers
	case s.Shared && user == s.User:
		return programs
	case user == 0 || int(user) == os.Geteuid():
		return manager
	default:
		return strangers
	}
}

func (s *Server) listen() (listener *net.UnixListener, err error) {
	if s.Shared {
		if err := os.MkdirAll(s.Dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(filepath.Join(s.Dir, SocketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	err = shim.InDirectory(s.Dir, SocketFile, func(address *net.UnixAddr) (err error) {
		listener, err = net.ListenUnix("unix", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // its name is only valid above
	mode := os.FileMode(0o600)
	if s.Shared {
		mode = 0o666
	}
	if err := os.Chmod(filepath.Join(s.Dir, SocketFile), mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// clean removes the socket. The next manager has not started yet, because only one at a time uses the state directory.
func (s *Server) clean() {
	_ = os.Remove(filepath.Join(s.Dir, SocketFile))
	if s.Shared {
		_ = os.Remove(s.Dir) // fails if something else is in it
	}
}

// serve receives one report and answers it.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(callTime)) // a connection that has failed fails below
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	result := answer{}
	if err := s.receive(ctx, conn); err != nil {
		result.Refused = err.Error()
		s.Log.V(1).Info("Refused a report of a hook", "cause", err.Error())
	}
	_ = json.NewEncoder(conn).Encode(result) // the client may have gone
}

func (s *Server) receive(ctx context.Context, conn *net.UnixConn) error {
	line, err := bufio.NewReader(io.LimitReader(conn, maxReport)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the report: %w", err)
	}
	var report Report
	if err := json.Unmarshal(line, &report); err != nil {
		return errors.New("the report is not valid JSON")
	}
	if err := report.Validate(); err != nil {
		return err
	}
	from, err := peerOf(conn)
	if err != nil {
		return err
	}
	defer from.Close()
	object, program, err := s.objectOf(ctx, from)
	if err != nil {
		return err
	}
	if err := from.owns(program); err != nil {
		return err
	}
	s.Reports.Add(object.UID, object.Incarnation, report)
	return nil
}

// objectOf returns the object to which the process at the other end belongs, and its program: the nearest of its ancestors that is the program of an object.
func (s *Server) objectOf(ctx context.Context, from *peer) (Object, procstat.Process, error) {
	lineage, err := from.lineage()
	if err != nil {
		return Object{}, procstat.Process{}, fmt.Errorf("read the ancestors of process %d: %w", from.pid, err)
	}
	boot, err := procstat.BootID()
	if err != nil {
		return Object{}, procstat.Process{}, fmt.Errorf("read the ID of the boot: %w", err)
	}
	for _, ancestor := range lineage {
		if object, found := s.Find(ctx, boot, ancestor); found {
			return object, ancestor, nil
		}
	}
	return Object{}, procstat.Process{}, fmt.Errorf("process %d belongs to no Instance of this manager", from.pid)
}
