// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

const recordSuffix = ".json"

// record is the state of the session of a UID. It is written before any action depends on it.
type record struct {
	UID         types.UID `json:"uid"`
	Name        string    `json:"name,omitempty"`
	Incarnation int64     `json:"incarnation"` // the newest requested incarnation
	Socket      string    `json:"socket"`
	Session     string    `json:"session"`       // the session's name when it was created or adopted
	Dir         string    `json:"dir,omitempty"` // working directory of new panes
	Columns     int32     `json:"columns"`
	Rows        int32     `json:"rows"`

	// Made is true if Berth created the session and may kill it.
	Made bool `json:"made,omitempty"`
	// BootID, Server, SessionID, PaneID and Pane identify the window, or the adopted program.
	BootID     string           `json:"bootID,omitempty"`
	Server     procstat.Process `json:"server,omitzero"`
	SocketPath string           `json:"socketPath,omitempty"`
	SessionID  string           `json:"sessionID,omitempty"`
	PaneID     string           `json:"paneID,omitempty"`
	Pane       procstat.Process `json:"pane,omitzero"`

	// Adopted is true if the program in the pane is the incarnation. The remaining fields apply only then.
	Adopted    bool         `json:"adopted,omitempty"`
	Origin     facts.Origin `json:"origin,omitzero"`
	StopSignal string       `json:"stopSignal,omitempty"`
	StartedAt  time.Time    `json:"startedAt,omitzero"`
	StopSent   bool         `json:"stopSent,omitempty"`
	KillSent   bool         `json:"killSent,omitempty"`
	LeaderExit *facts.Exit  `json:"leaderExit,omitempty"` // set while the rest of the tree is being terminated
	Exit       *facts.Exit  `json:"exit,omitempty"`
}

func (r *Runtime) path(uid types.UID) string {
	return filepath.Join(r.options.Dir, string(uid)+recordSuffix)
}

// read returns the record of a UID, or nil if there is none.
func (r *Runtime) read(uid types.UID) (*record, error) {
	if !runtime.ValidUID(uid) {
		return nil, nil
	}
	var rec record
	found, err := statedir.ReadJSON(r.path(uid), &rec)
	if err != nil {
		return nil, fmt.Errorf("read the record of the session: %w", err)
	}
	if !found {
		return nil, nil
	}
	return &rec, nil
}

func (r *Runtime) write(rec *record) error {
	if err := statedir.WriteJSON(r.path(rec.UID), rec, false); err != nil {
		return fmt.Errorf("record the session: %w", err)
	}
	return nil
}

func (r *Runtime) erase(uid types.UID) error {
	if err := os.Remove(r.path(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record of the session: %w", err)
	}
	return nil
}

// at records the location of a pane. The identity of a process that has already exited remains zero.
func (rec *record) at(boot string, s *Session, p *pane) {
	rec.BootID, rec.SocketPath, rec.SessionID, rec.PaneID, rec.Pane = boot, s.server.socket, s.ID, "", procstat.Process{}
	rec.Server, _ = procstat.Identify(s.server.pid)
	if p != nil {
		rec.PaneID = p.id
		rec.Pane, _ = procstat.Identify(p.pid)
	}
}

// tree identifies the processes of an adopted pane by the environment variables that tmux sets, which also identify processes that left the session and the
// tree.
func (rec *record) tree() shim.Tree {
	return shim.Tree{Leader: rec.Pane, Carried: []string{
		"\x00TMUX=" + rec.SocketPath + "," + strconv.Itoa(rec.Server.PID) + ",", "\x00TMUX_PANE=" + rec.PaneID + "\x00",
	}}
}

// incarnation returns an adopted incarnation in the given phase, with the fields that the record determines.
func (rec *record) incarnation(phase facts.Phase) facts.Incarnation {
	node, _ := os.Hostname()
	return facts.Incarnation{
		UID: string(rec.UID), Number: rec.Incarnation, Name: rec.Name, Phase: phase, Adopted: true, Node: node, PID: int64(rec.Pane.PID), StartTicks: int64(rec.Pane.Ticks),
		BootID: rec.BootID, StartedAt: rec.StartedAt, StopSent: rec.StopSent, Exit: rec.Exit, LeaderExit: rec.LeaderExit,
		Origin: rec.Origin,
	}
}

// exitOfPane returns the exit of the program in a pane, as far as tmux reports it.
func exitOfPane(p *pane) *facts.Exit {
	exit := &facts.Exit{FinishedAt: time.Now().UTC().Round(0)}
	switch {
	case p.signal != "" && p.signal != "0":
		exit.Known, exit.Signal = true, signalName(p.signal)
	case p.status != "":
		exit.Known, exit.Code = true, int32(number(p.status))
	default:
		exit.Message = "tmux does not report the exit status of the program"
	}
	return exit
}

func signalName(said string) string {
	if n, err := strconv.Atoi(said); err == nil {
		return shim.SignalName(n)
	}
	return "SIG" + strings.TrimPrefix(strings.ToUpper(said), "SIG")
}
