// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/internal/lsp/control"
)

// exitMissing is the exit code of berth for an object that does not exist.
const exitMissing = 3

// Main runs the bridge between standard input and output and a multiplexer on this machine, and returns the exit code. The first argument is the path of its
// socket. The others are a command that waits until the object has a socket that accepts connections, and prints its path: the bridge runs it if the connection is
// lost and the socket does not accept another one.
//
// berth lsp connect becomes this program, because it runs for as long as the editor does and needs a fraction of the memory of berth.
func Main(args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "berth-lsp connect is started by berth lsp connect, not by hand: it requires a socket and a command")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	socket, command := args[0], args[1:]
	said := &unrepeated{to: os.Stderr, before: map[string]bool{}}
	err := Run(ctx, Options{
		In: os.Stdin, Out: os.Stdout, Say: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
		Dial: func(ctx context.Context) (net.Conn, error) {
			if conn, err := control.Connect(ctx, socket); err == nil {
				return conn, nil
			}
			path, err := find(ctx, command, said)
			if err != nil {
				return nil, err
			}
			socket = path
			clear(said.before)
			return control.Connect(ctx, socket)
		},
	})
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrGone):
		return exitMissing // the command has printed why
	case ctx.Err() != nil:
		return 130
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return 1
}

// unrepeated passes on messages, each only once.
type unrepeated struct {
	to     io.Writer
	before map[string]bool
}

// maxBefore is the maximum number of messages that are remembered.
const maxBefore = 100

func (u *unrepeated) Write(text []byte) (int, error) {
	if u.before[string(text)] {
		return len(text), nil
	}
	if len(u.before) < maxBefore {
		u.before[string(text)] = true
	}
	return u.to.Write(text)
}

// find runs the command that prints the path of the socket, with its messages on stderr.
func find(ctx context.Context, command []string, stderr io.Writer) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &out, stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.ExitCode() == exitMissing {
		return "", ErrGone
	}
	if err != nil {
		return "", fmt.Errorf("find the socket of the language server: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}
