// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tmux runs incarnations that people look at through tmux.
//
// The process itself is held by the host backend: its berth-shim has the terminal, the tree, the log and the exit. A session of tmux is a window
// on that terminal; it can be lost and is made again, and nothing is lost with it. Only a session that was there before and was adopted is the
// real thing: then the program in its pane is the incarnation, and what is known of it is what tmux and the process table say.
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
)

// askTimeout is how long tmux may take to answer. It takes milliseconds unless its server is stopped or the machine is very busy.
const askTimeout = 5 * time.Second

// errNoServer means: nobody serves that socket, so it has no sessions.
var errNoServer = errors.New("no tmux server runs there")

// errLeaving means: the server ended while it was asked. Nothing was done, or everything went with it.
var errLeaving = errors.New("the tmux server ended while it was asked")

// refusal is an answer of a living server that says no.
type refusal struct{ text string }

func (r *refusal) Error() string { return "tmux says: " + r.text }

// client talks to one tmux server, by its command line program.
type client struct {
	program string
	socket  string
}

// run has tmux carry out commands in one go, and gives what it prints. They are joined into one sequence, of which the first that fails is the last.
func (c client) run(ctx context.Context, commands ...[]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// The user's configuration is not ours to depend on. UTF-8 is said, so that names come as they are.
	args := []string{"-u", "-L", c.socket, "-f", os.DevNull}
	for i, command := range commands {
		if i > 0 {
			args = append(args, ";")
		}
		for _, arg := range command {
			args = append(args, literal(arg))
		}
	}
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env = environment()
	cmd.Dir = "/" // a server that it starts stays where it is
	// A server that this call starts inherits nothing that would keep the pipes of the call open.
	cmd.WaitDelay = time.Second
	var out, said bounded
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	switch {
	case err == nil && out.dropped:
		return "", fmt.Errorf("tmux answered with more than %d bytes on socket %s", mostAnswer, c.socket)
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("tmux did not answer on socket %s: %w", c.socket, ctx.Err())
	}
	return "", c.explain(err, strings.TrimSpace(said.String()))
}

// mostAnswer is how much of an answer is kept, in bytes. The largest screen and thousands of sessions fit; a tmux server of another user may send any amount.
const mostAnswer = 4 << 20

// bounded keeps the beginning of what is written to it.
type bounded struct {
	kept    bytes.Buffer // not embedded: its ReadFrom would pass Write by
	dropped bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(len(p), mostAnswer-b.kept.Len())
	b.dropped = b.dropped || room < len(p)
	_, _ = b.kept.Write(p[:room]) // never fails
	return len(p), nil
}

func (b *bounded) String() string { return b.kept.String() }

// explain tells a server that is gone from one that says no, and both from a call that went wrong.
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

// persist asks again while a server is about to end: in a moment it is gone, and what is asked finds none, or a new one.
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

// literal keeps tmux from taking the end of an argument for the end of a command.
func literal(arg string) string {
	if text, found := strings.CutSuffix(arg, ";"); found {
		return text + `\;`
	}
	return arg
}

// format keeps tmux from expanding what it takes for a format.
func format(arg string) string { return strings.ReplaceAll(arg, "#", "##") }

// passed are the variables that a server gets from us. All that it has is inherited by every pane, so it is little, and nothing secret.
var passed = []string{"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TMUX_TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"}

func environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains(passed, name) || strings.HasPrefix(name, "LC_") {
			env = append(env, entry)
		}
	}
	return env
}

// sequence makes one string of a command, as the branches of if-shell take them.
func sequence(command ...string) string {
	words := make([]string, 0, len(command))
	for _, word := range command {
		words = append(words, quote(word))
	}
	return strings.Join(words, " ")
}

// quote makes a word that a shell takes as it is.
func quote(word string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./", c)
	}
	if word != "" && strings.IndexFunc(word, func(c rune) bool { return !plain(c) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// target is how a person names exactly one session in a shell.
func target(session string) string { return quote(literal("=" + session)) }
