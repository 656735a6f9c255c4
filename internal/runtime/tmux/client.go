// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tmux shows the terminals of incarnations in tmux sessions.
//
// The host backend runs the process: its berth-shim holds the terminal, the process tree, the log and the exit status. The tmux session only displays that
// terminal. If the session is lost, Berth creates it again; no state is lost. Only an adopted session, which existed before Berth used it, is different:
// the program in its pane is the incarnation, and the state of the incarnation comes from tmux and the process table.
package tmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/shim"
)

// askTimeout is how long tmux may take to respond. A response takes milliseconds unless the tmux server is suspended or the machine is very busy.
const askTimeout = 5 * time.Second

// errNoServer means that no server listens on the socket, so there are no sessions.
var errNoServer = errors.New("no tmux server is running")

// errLeaving means that the server exited during the request. The request had no effect, or its effect was lost with the server.
var errLeaving = errors.New("the tmux server exited during the request")

// refusal is an error message from a running server.
type refusal struct{ text string }

func (r *refusal) Error() string { return "tmux reports: " + r.text }

// client sends commands to one tmux server through the tmux program.
type client struct {
	program string
	socket  string
	user    *shim.User // the user whose server it is; nil means the user of the manager
}

// command returns a call of the tmux program. The call runs as the user of the server, so that it has no other rights than that user.
func (c client) command(ctx context.Context, args ...string) *exec.Cmd {
	// The user's configuration file is not read. -u selects UTF-8, so that names are not escaped.
	cmd := exec.CommandContext(ctx, c.program, append([]string{"-u", "-L", c.socket, "-f", os.DevNull}, args...)...)
	cmd.Env = c.environment()
	cmd.Dir = "/" // the working directory of a server that this call starts
	c.assume(cmd)
	return cmd
}

// run executes commands in one tmux call, and returns their output. tmux executes them in order and stops at the first command that fails.
func (c client) run(ctx context.Context, commands ...[]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var args []string
	for i, command := range commands {
		if i > 0 {
			args = append(args, ";")
		}
		for _, arg := range command {
			args = append(args, literal(arg))
		}
	}
	cmd := c.command(ctx, args...)
	// A server that this call starts does not inherit the pipes of the call, so a short delay is enough for reading the output to the end.
	cmd.WaitDelay = time.Second
	var out, said bounded
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	switch {
	case err == nil && out.dropped:
		return "", fmt.Errorf("the response of tmux exceeds %d bytes on socket %s", mostAnswer, c.socket)
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("tmux did not respond on socket %s: %w", c.socket, ctx.Err())
	}
	return "", c.explain(err, strings.TrimSpace(said.String()))
}

// mostAnswer limits the output that is kept, in bytes. The largest screen and thousands of sessions fit; a tmux server of another user could send any amount.
const mostAnswer = 4 << 20

// bounded keeps the first mostAnswer bytes written to it.
type bounded struct {
	kept    bytes.Buffer // not embedded, because its ReadFrom would bypass Write
	dropped bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(len(p), mostAnswer-b.kept.Len())
	b.dropped = b.dropped || room < len(p)
	_, _ = b.kept.Write(p[:room]) // never fails
	return len(p), nil
}

func (b *bounded) String() string { return b.kept.String() }

// explain converts the error of a call: errNoServer for a missing server, errLeaving for an exiting server, and a refusal if the server rejects the command.
func (c client) explain(err error, said string) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("run %s: %w", c.program, err)
	}
	switch {
	case strings.HasPrefix(said, "no server running on "),
		strings.HasPrefix(said, "error connecting to ") && (strings.Contains(said, "No such file") || strings.Contains(said, "Connection refused")):
		return fmt.Errorf("socket %s: %w", c.socket, errNoServer)
	case strings.Contains(said, "server exited"), strings.Contains(said, "lost server"):
		return fmt.Errorf("socket %s: %w", c.socket, errLeaving)
	case exit.ExitCode() == 1 && said != "" && !strings.HasPrefix(said, "error connecting to "):
		return &refusal{text: said}
	}
	return fmt.Errorf("tmux failed on socket %s: %w: %s", c.socket, err, said)
}

// persist calls the function ask until ask returns something other than errLeaving, for at most askTimeout. Once the exiting server is gone, ask finds no
// server or a new one.
func (c client) persist(ctx context.Context, ask func() error) error {
	pause := time.Millisecond
	deadline := time.Now().Add(askTimeout)
	for {
		err := ask()
		if !errors.Is(err, errLeaving) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func refused(err error, text string) bool {
	var no *refusal
	return errors.As(err, &no) && strings.Contains(no.text, text)
}

// literal prevents tmux from interpreting a semicolon at the end of an argument as the end of the command.
func literal(arg string) string {
	if text, found := strings.CutSuffix(arg, ";"); found {
		return text + `\;`
	}
	return arg
}

// format prevents tmux from expanding the argument as a format.
func format(arg string) string { return strings.ReplaceAll(arg, "#", "##") }

// passed are the environment variables that a tmux server inherits. Every pane inherits the environment of its server, so the list is short and contains no
// secrets.
var passed = []string{"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TMUX_TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"}

func (c client) environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains(passed, name) || strings.HasPrefix(name, "LC_") {
			env = append(env, entry)
		}
	}
	if c.user == nil {
		return env
	}
	env = c.user.Inherited(env)
	if dir := os.Getenv(socketDirVariable); dir != "" {
		env = append(env, socketDirVariable+"="+dir)
	}
	return env
}

// socketDirVariable names the directory in which tmux has one directory of sockets for each user.
const socketDirVariable = "TMUX_TMPDIR"

// sequence formats a command as one string, as the branches of if-shell require.
func sequence(command ...string) string {
	words := make([]string, 0, len(command))
	for _, word := range command {
		words = append(words, printable.Quote(word))
	}
	return strings.Join(words, " ")
}

// target returns a shell word that identifies exactly one session.
func target(session string) string { return printable.Quote(literal("=" + session)) }
