// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/statedir"
)

// detachPoll is how often the output of a detached berth up is read.
const detachPoll = 50 * time.Millisecond

// readyPrefix begins the line that berth up prints on standard output once the control plane is ready and the manifests are applied.
const readyPrefix = "export KUBECONFIG="

// detach starts a second berth up with the same flags in a new session, so that this process outlives the terminal. detach shows the output of the process
// until it is ready, and returns an error if the process exits before that. If the context is done first, detach stops the process.
func (a *app) detach(ctx context.Context, command *cobra.Command, f *upFlags) error {
	defer outlivePipes()()
	if owner, err := controlplane.FindOwner(f.stateDir); err != nil {
		return err
	} else if owner != nil {
		return a.alreadyUp(owner, f)
	}
	log, err := detachedLog(f.stateDir)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program of this process: %w", err)
	}
	up := exec.Command(program, detachedArguments(command)...)
	up.Stdout, up.Stderr = log, log
	up.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := up.Start(); err != nil {
		return fmt.Errorf("start berth up: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- up.Wait() }()
	tick := a.clock.NewTicker(detachPoll)
	defer tick.Stop()
	var shown int64
	for {
		select {
		case <-ctx.Done():
			a.say("stopping berth up (process %d)", up.Process.Pid)
			return errors.Join(ctx.Err(), up.Process.Signal(syscall.SIGTERM), <-ended)
		case err := <-ended:
			_, _ = a.showNew(log, shown)
			if err == nil {
				return errors.New("berth up was stopped before it was ready")
			}
			return fmt.Errorf("berth up ended before it was ready (%w); its output is in %s", err, log.Name())
		case <-tick.C():
		}
		var ready bool
		if shown, ready = a.showNew(log, shown); ready {
			down := "berth down"
			if f.stateDir != defaultStateDir() {
				down += " --state-dir " + quote(f.stateDir)
			}
			a.say("berth up runs in the background (process %d, output %s); to stop it, run %s", up.Process.Pid, log.Name(), down)
			return nil
		}
	}
}

// alreadyUp prints the kubeconfig of a berth up that is running, so that a script can use berth up --detach more than once.
func (a *app) alreadyUp(owner *controlplane.Owner, f *upFlags) error {
	if f.manifests != "" {
		return fmt.Errorf("berth up is already running (process %d): use kubectl apply -f %s", owner.PID, f.manifests)
	}
	a.say("berth up is already running (process %d)", owner.PID)
	path, err := filepath.Abs(controlplane.KubeconfigPath(f.stateDir))
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	_, err = fmt.Fprintln(a.out, readyPrefix+quote(path))
	return err
}

// showNew shows the complete lines of a file from an offset on, up to the line that begins with readyPrefix. It returns the offset after the shown lines, and
// whether that line was among them.
func (a *app) showNew(log *os.File, from int64) (next int64, ready bool) {
	data := make([]byte, 1<<20)
	n, _ := log.ReadAt(data, from) // at the end of the file it returns io.EOF; after another error, the next call reads again
	for line := range bytes.Lines(data[:n]) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		from += int64(len(line))
		if bytes.HasPrefix(line, []byte(readyPrefix)) {
			_, _ = a.out.Write(line)
			return from, true
		}
		a.say("%s", bytes.TrimSuffix(line, []byte("\n")))
	}
	return from, false
}

// detachedLog creates the file for the output of berth up, and keeps the previous one, which may explain why an earlier berth up exited.
func detachedLog(stateDir string) (*os.File, error) {
	root, err := statedir.Make(stateDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(root, "logs"), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of logs: %w", err)
	}
	path := filepath.Join(root, "logs", "up.log")
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("keep the previous output of berth up: %w", err)
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the output of berth up: %w", err)
	}
	return log, nil
}

// detachedArguments returns the command line of the berth up that runs in the background. That process does not show objects, because their changes would fill
// its output.
func detachedArguments(command *cobra.Command) []string {
	arguments := []string{"up", "--hide-objects"}
	command.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name != "detach" {
			arguments = append(arguments, "--"+flag.Name+"="+flag.Value.String())
		}
	})
	return arguments
}
