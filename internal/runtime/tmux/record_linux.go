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
	"github.com/berth-dev/berth/internal/shim"
)

const recordSuffix = ".json"

// record is what is known of the session of a UID, written down before anything depends on it.
type record struct {
	UID         types.UID `json:"uid"`
	Name        string    `json:"name,omitempty"`
	Incarnation int64     `json:"incarnation"` // the newest that was asked for
	Socket      string    `json:"socket"`
	Session     string    `json:"session"`       // its name when it was made or adopted
	Dir         string    `json:"dir,omitempty"` // where its new panes begin
	Columns     int32     `json:"columns"`
	Rows        int32     `json:"rows"`

	// Made says that the session is one that Berth has made, and may end.
	Made bool `json:"made,omitempty"`
	// BootID, Server, SessionID, PaneID and Pane say where the window is, or the program that was adopted.
	BootID     string       `json:"bootID,omitempty"`
	Server     shim.Process `json:"server,omitzero"`
	SocketPath string       `json:"socketPath,omitempty"`
	SessionID  string       `json:"sessionID,omitempty"`
	PaneID     string       `json:"paneID,omitempty"`
	Pane       shim.Process `json:"pane,omitzero"`

	// Adopted says that the program in the pane is the incarnation; the rest is about it.
	Adopted    bool         `json:"adopted,omitempty"`
	Origin     facts.Origin `json:"origin,omitzero"`
	StopSignal string       `json:"stopSignal,omitempty"`
	StartedAt  time.Time    `json:"startedAt,omitzero"`
	StopSent   bool         `json:"stopSent,omitempty"`
	KillSent   bool         `json:"killSent,omitempty"`
	LeaderExit *facts.Exit  `json:"leaderExit,omitempty"` // set while the rest of the tree is being killed
	Exit       *facts.Exit  `json:"exit,omitempty"`
}

func (r *Runtime) path(uid types.UID) string {
	return filepath.Join(r.options.Dir, string(uid)+recordSuffix)
}

// read gives the record of a UID, or nil when there is none.
func (r *Runtime) read(uid types.UID) (*record, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, nil
	}
	var rec record
	found, err := shim.ReadFile(r.path(uid), &rec)
	if err != nil {
		return nil, fmt.Errorf("the record of the session: %w", err)
	}
	if !found {
		return nil, nil
	}
	return &rec, nil
}

func (r *Runtime) write(rec *record) error {
	if err := shim.WriteFile(r.path(rec.UID), rec, false); err != nil {
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

// at notes where a pane is. What has ended meanwhile is left zero.
func (rec *record) at(boot string, s *Session, p *pane) {
	rec.BootID, rec.SocketPath, rec.SessionID, rec.PaneID, rec.Pane = boot, s.server.socket, s.ID, "", shim.Process{}
	rec.Server, _ = shim.Identify(s.server.pid)
	if p != nil {
		rec.PaneID = p.id
		rec.Pane, _ = shim.Identify(p.pid)
	}
}

// tree is how the processes of an adopted pane are found: tmux tells each in its environment where it is, also those that left everything else.
func (rec *record) tree() shim.Tree {
	return shim.Tree{Leader: rec.Pane, Carried: []string{
		"\x00TMUX=" + rec.SocketPath + "," + strconv.Itoa(rec.Server.PID) + ",", "\x00TMUX_PANE=" + rec.PaneID + "\x00",
	}}
}

// incarnation gives what the record alone can say of an adopted one.
func (rec *record) incarnation(phase facts.Phase) facts.Incarnation {
	node, _ := os.Hostname()
	return facts.Incarnation{
		UID: string(rec.UID), Number: rec.Incarnation, Name: rec.Name, Phase: phase, Adopted: true, Node: node, PID: int64(rec.Pane.PID), StartTicks: int64(rec.Pane.Ticks),
		BootID: rec.BootID, StartedAt: rec.StartedAt, StopSent: rec.StopSent, Exit: rec.Exit, LeaderExit: rec.LeaderExit,
		Origin: rec.Origin,
	}
}

// exitOfPane is how a pane ended, as far as tmux tells.
func exitOfPane(p *pane) *facts.Exit {
	exit := &facts.Exit{FinishedAt: time.Now().UTC().Round(0)}
	switch {
	case p.signal != "" && p.signal != "0":
		exit.Known, exit.Signal = true, signalName(p.signal)
	case p.status != "":
		exit.Known, exit.Code = true, int32(number(p.status))
	default:
		exit.Message = "tmux does not tell how the program ended"
	}
	return exit
}

func signalName(said string) string {
	if n, err := strconv.Atoi(said); err == nil {
		return shim.SignalName(n)
	}
	return "SIG" + strings.TrimPrefix(strings.ToUpper(said), "SIG")
}
