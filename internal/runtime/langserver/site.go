// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// site is where multiplexers run. It prepares their start, connects to them, and reads the state that they leave when they exit.
type site interface {
	// begin prepares the start of a multiplexer, and returns its process. held is the previous multiplexer, or nil if there is none. p is the first server in
	// the new multiplexer, or nil if the multiplexer starts without a server.
	begin(ctx context.Context, uid types.UID, held *facts.Incarnation, p *runtime.Process) (runtime.Process, error)
	// environment sets the environment and the user of a server in launch. asked are the environment variables that the server's object requests.
	environment(launch *lsp.Launch, asked []string)
	// setNamespace sets the namespace of an object; an empty namespace removes it.
	setNamespace(uid types.UID, namespace string)
	// dial connects to the running multiplexer as a manager.
	dial(ctx context.Context, uid types.UID) (net.Conn, error)
	// state returns the content of the state file of the newest multiplexer. If there is no state file, the Incarnation of the report is 0.
	state(ctx context.Context, uid types.UID) (lsp.Report, error)
	// note stores the incarnation of the server that a multiplexer is about to start, for a later manager that cannot reach the multiplexer. noted returns the
	// stored incarnation, or 0 if the site does not store one.
	note(ctx context.Context, uid types.UID, held *facts.Incarnation, incarnation int64) error
	noted(uid types.UID, held *facts.Incarnation) int64
	// fits reports whether a multiplexer matches the spec.
	fits(uid types.UID, held *facts.Incarnation, p runtime.Process) bool
	// revives reports whether a lost multiplexer can be started without a server.
	revives() bool
	// silence is how long the loss of a connection counts as temporary; after that time the state of the server is unknown.
	silence() time.Duration
	// forget removes everything that is stored for a UID outside the multiplexer.
	forget(uid types.UID) error
}

// onHost is the site for multiplexers on this machine: each multiplexer has a directory that contains its sockets and its state file.
type onHost struct {
	dir, program string
	runAs        *shim.User
}

func (h *onHost) directory(uid types.UID) string { return filepath.Join(h.dir, string(uid)) }

func (h *onHost) begin(ctx context.Context, uid types.UID, held *facts.Incarnation, _ *runtime.Process) (runtime.Process, error) {
	dir := h.directory(uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return runtime.Process{}, fmt.Errorf("create the directory of the multiplexer: %w", err)
	}
	if err := h.settle(ctx, uid, held); err != nil {
		return runtime.Process{}, err
	}
	var number int64 = 1
	if held != nil {
		number = held.Number + 1
	}
	return runtime.Process{Incarnation: number, Command: []string{h.program, "--dir", dir}, Dir: "/", StopSignal: "SIGTERM", AsManager: true}, nil
}

// settle writes the exit of a server to the state file if the multiplexer could not do so. It is called before a new multiplexer is started, because the exit
// cannot be determined after that.
func (h *onHost) settle(ctx context.Context, uid types.UID, held *facts.Incarnation) error {
	state, err := h.state(ctx, uid)
	if err != nil || state.Incarnation == 0 || state.Exit != nil || state.StartError != nil {
		return err
	}
	end := gone(view{}, held, state)
	state.Phase, state.LeaderExit = facts.Exited, nil
	state.Exit = end.Exit
	if err := statedir.WriteJSON(filepath.Join(h.directory(uid), lsp.StateFile), state, false); err != nil {
		return fmt.Errorf("record the exit of the server: %w", err)
	}
	return nil
}

// environment sets the user of the server, and its environment: the inherited variables, then the requested ones, which take precedence.
func (h *onHost) environment(launch *lsp.Launch, asked []string) {
	launch.Env, launch.RunAs = append(h.runAs.Inherited(os.Environ()), asked...), h.runAs
}

// setNamespace does nothing: processes of this machine are in no namespace.
func (*onHost) setNamespace(types.UID, string) {}

func (h *onHost) dial(ctx context.Context, uid types.UID) (net.Conn, error) {
	return control.Connect(ctx, filepath.Join(h.directory(uid), lsp.ControlSocket))
}

func (h *onHost) state(_ context.Context, uid types.UID) (lsp.Report, error) {
	var state lsp.Report
	_, err := statedir.ReadJSON(filepath.Join(h.directory(uid), lsp.StateFile), &state)
	if err != nil {
		return lsp.Report{}, fmt.Errorf("read the state of the language server: %w", err)
	}
	return state, nil
}

// note does nothing: the multiplexer writes the incarnation to its state file, which can always be read.
func (*onHost) note(context.Context, types.UID, *facts.Incarnation, int64) error { return nil }

func (*onHost) noted(types.UID, *facts.Incarnation) int64 { return 0 }

func (*onHost) fits(types.UID, *facts.Incarnation, runtime.Process) bool { return true }

func (*onHost) revives() bool { return true }

func (*onHost) silence() time.Duration { return 2 * time.Second }

func (h *onHost) forget(uid types.UID) error { return os.RemoveAll(h.directory(uid)) }
