// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// adoption determines what to do if the session already exists.
type adoption string

// Values of adoption.
const (
	// adoptNever rejects the start if a session of another owner has the name.
	adoptNever adoption = "Never"
	// adoptIfExists adopts an existing session, and creates one otherwise.
	adoptIfExists adoption = "IfExists"
	// adoptRequired adopts an existing session, and rejects the start otherwise.
	adoptRequired adoption = "Required"
)

const (
	// defaultSocket is the name of Berth's tmux socket, as in tmux -L.
	defaultSocket = "berth"

	defaultColumns, defaultRows = 120, 40
	largestSize                 = 1000
	longestName                 = 128
)

// sessionConfig is the configuration of a tmux session in addition to the other fields of runtime.Process. It is the JSON in runtime.Process.Config.
type sessionConfig struct {
	// Session is the name of the session; empty means berth- and the UID.
	Session string `json:"session,omitempty"`
	// Socket is the name of the tmux socket, as in tmux -L; empty means Options.Socket.
	Socket string `json:"socket,omitempty"`
	// Adopt determines what to do if the session already exists; empty means adoptNever.
	Adopt adoption `json:"adopt,omitempty"`
	// Columns and Rows are the size of a new session without a client, in characters; 0 means the size in runtime.Process.Terminal, or 120x40 without one.
	Columns int32 `json:"columns,omitempty"`
	Rows    int32 `json:"rows,omitempty"`
}

// parse decodes the configuration of a process and sets the defaults.
func parse(p runtime.Process, socket string) (sessionConfig, error) {
	var c sessionConfig
	if len(bytes.TrimSpace(p.Config)) > 0 {
		if err := json.Unmarshal(p.Config, &c); err != nil {
			return c, invalid("cannot parse the configuration of the session: %v", err)
		}
	}
	if c.Columns == 0 && c.Rows == 0 && p.Terminal != nil {
		c.Columns, c.Rows = p.Terminal.Columns, p.Terminal.Rows
	}
	return c.complete(p.UID, socket)
}

func (c sessionConfig) complete(uid types.UID, socket string) (sessionConfig, error) {
	c.Session, c.Socket, c.Adopt = cmp.Or(c.Session, sessionName(uid)), cmp.Or(c.Socket, socket), cmp.Or(c.Adopt, adoptNever)
	if c.Columns <= 0 || c.Rows <= 0 {
		c.Columns, c.Rows = defaultColumns, defaultRows
	}
	c.Columns, c.Rows = min(c.Columns, largestSize), min(c.Rows, largestSize)
	if c.Adopt != adoptNever && c.Adopt != adoptIfExists && c.Adopt != adoptRequired {
		return c, invalid("unknown adoption %q; use Never, IfExists or Required", c.Adopt)
	}
	if err := checkSessionName(c.Session); err != nil {
		return c, invalid("%v", err)
	}
	if err := checkSocketName(c.Socket); err != nil {
		return c, invalid("%v", err)
	}
	return c, nil
}

func invalid(format string, args ...any) error {
	return &facts.StartError{Reason: v1alpha1.ReasonInvalidSession, Message: fmt.Sprintf(format, args...)}
}

// sessionName returns the default name of the session of a UID.
func sessionName(uid types.UID) string { return "berth-" + strings.ReplaceAll(string(uid), ".", "_") }

// checkSessionName returns an error if tmux would reject or change the name. tmux changes some names silently; Berth could then not find the session again.
func checkSessionName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the session has no name; set one")
	case len(name) > longestName:
		return fmt.Errorf("the session name %.20q… has %d bytes; the limit is %d", name, len(name), longestName)
	case !utf8.ValidString(name):
		return fmt.Errorf("the session name %q is not valid UTF-8", name)
	}
	for _, c := range name {
		switch {
		case c == '.' || c == ':':
			return fmt.Errorf("the session name %q contains %q, which tmux replaces with an underscore; use another character", name, c)
		case strings.ContainsRune(`#$\`, c) || !unicode.IsPrint(c):
			return fmt.Errorf("the session name %q contains %q, which tmux does not keep unchanged; use another character", name, c)
		}
	}
	if strings.HasPrefix(name, "-") {
		return fmt.Errorf("the session name %q begins with a dash, which tmux parses as an option; begin it with a letter", name)
	}
	return nil
}

// checkSocketName returns an error if the name is not valid for a tmux socket.
func checkSocketName(name string) error {
	if name == "" || len(name) > 64 || name == "." || name == ".." || strings.HasPrefix(name, "-") {
		return fmt.Errorf("invalid name %q of a tmux socket; use at most 64 letters and digits", name)
	}
	for _, c := range name {
		if c == '/' || c == '\\' || !unicode.IsPrint(c) || unicode.IsSpace(c) {
			return fmt.Errorf("the name %q of a tmux socket contains %q; use letters and digits", name, c)
		}
	}
	return nil
}
