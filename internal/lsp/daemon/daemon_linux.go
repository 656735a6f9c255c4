// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/lsp/mux"
	"github.com/berth-dev/berth/internal/statedir"
)

// lockFile prevents a second multiplexer from using the directory.
const lockFile = "multiplexer.lock"

// quitPatience is how long closing the connections of clients may take before the multiplexer exits anyway.
const quitPatience = 2 * time.Second

// Main runs berth-lsp and returns its exit code.
func Main(args []string) int {
	flags := flag.NewFlagSet("berth-lsp", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory of the sockets and the state, for this multiplexer only")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	if *dir == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "berth-lsp is started by berth, not by hand: it requires --dir and accepts no other arguments")
		return 2
	}
	return Until(func(ctx context.Context) error { return run(ctx, *dir, os.Stderr) })
}

// Until runs a function with a context that ends when a termination signal arrives, and returns the exit code.
func Until(run func(context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-lsp:", err)
		return 1
	}
	return 0
}

// run serves managers and clients in a directory until a manager sends Quit or the context ends. When the context ends, run stops the server before it returns.
// The log and the stderr of the server are written to stderr.
func run(ctx context.Context, dir string, stderr *os.File) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the multiplexer: %w", err)
	}
	lock, err := takeLock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	clients, err := control.Listen(filepath.Join(dir, lsp.ClientSocket))
	if err != nil {
		return err
	}
	managers, err := control.Listen(filepath.Join(dir, lsp.ControlSocket))
	if err != nil {
		return errors.Join(err, clients.Close())
	}
	store := func(report lsp.Report) error {
		return statedir.WriteJSON(filepath.Join(dir, lsp.StateFile), report, false)
	}
	err = Serve(ctx, clients, managers, store, stderr)
	for _, socket := range []string{lsp.ClientSocket, lsp.ControlSocket} {
		_ = os.Remove(filepath.Join(dir, socket))
	}
	return err
}

// Serve serves managers and clients on two listeners until a manager sends Quit or the context ends. When the context ends, Serve stops the server before it
// returns. store writes the state of the server, for readers after this program has exited.
func Serve(ctx context.Context, clients, managers net.Listener, store func(lsp.Report) error, stderr *os.File) error {
	return newProgram(store, stderr).run(ctx, clients, managers)
}

func newProgram(store func(lsp.Report) error, stderr *os.File) *program {
	p := &program{
		store: store, stderr: stderr, report: lsp.Report{Protocol: lsp.Protocol, Phase: lsp.None},
		changes: make(chan struct{}, 1), urgent: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	p.mux = mux.New(mux.Options{
		ProcessID: os.Getpid(), Changed: p.changed, Urgent: p.notifyUrgent, Log: p.log, CPU: p.cpu, Watch: mux.WatchDisk,
	})
	return p
}

// run serves until Quit, the end of ctx or the failure of a listener. Unless the reason is Quit, it then stops the server. It closes the connections of clients
// before that of the manager, so that the manager receives the last reports.
func (p *program) run(ctx context.Context, clients, managers net.Listener) error {
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	failed := make(chan error, 2)
	all.Go(func() {
		failed <- control.Accept(serving, clients, func(conn net.Conn) { go p.mux.Serve(conn) }, func(err error) { p.log("cannot accept a client: %v", err) })
	})
	all.Go(func() { failed <- control.Serve(serving, managers, p) })
	all.Go(func() { p.sample(serving) })
	var err error
	select {
	case <-p.quit:
	case <-ctx.Done():
		p.terminate()
	case err = <-failed:
		p.terminate()
	}
	// New clients are not accepted, and connected ones receive the reason.
	_ = clients.Close()
	gone := make(chan struct{})
	go func() {
		p.mux.Quit(p.farewell())
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(quitPatience):
	}
	stop()
	all.Wait()
	return err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// takeLock locks a file. The lock is held as long as the file is open. The manager starts a multiplexer only after the previous one has exited.
func takeLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another multiplexer uses %s; stop that multiplexer first: %w", path, err), file.Close())
	}
	return file, nil
}

// log writes one line for operators. It must not contain secrets.
func (p *program) log(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, "%s berth-lsp: %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf(format, args...))
}
