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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/printable"
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
		return a.alreadyUp(ctx, owner, f)
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
			err := errors.Join(ctx.Err(), up.Process.Signal(syscall.SIGTERM), <-ended)
			_, failed := publishLog(log)
			return errors.Join(err, failed)
		case err := <-ended:
			return a.endedEarly(ctx, f, log, shown, err)
		case <-tick.C():
		}
		var ready bool
		if shown, ready = a.showNew(log, shown); ready {
			down := "berth down"
			if f.stateDir != defaultStateDir() {
				down += " --state-dir " + printable.Quote(f.stateDir)
			}
			path, err := publishLog(log)
			if err != nil {
				return err
			}
			a.say("berth up runs in the background (process %d, output %s); to stop it, run %s", up.Process.Pid, path, down)
			return nil
		}
	}
}

// endedEarly returns the error of a berth up that has ended before it was ready, unless another berth up has started at the same time.
func (a *app) endedEarly(ctx context.Context, f *upFlags, log *os.File, shown int64, err error) error {
	if owner, _ := controlplane.FindOwner(f.stateDir); err != nil && owner != nil {
		return errors.Join(a.alreadyUp(ctx, owner, f), os.Remove(log.Name()))
	}
	_, _ = a.showNew(log, shown)
	path, failed := publishLog(log)
	if err == nil {
		return errors.Join(errors.New("berth up was stopped before it was ready"), failed)
	}
	return errors.Join(fmt.Errorf("berth up ended before it was ready (%w); its output is in %s", err, path), failed)
}

// alreadyTimeout is how long berth up --detach waits for a berth up that another command has started.
const alreadyTimeout = time.Minute

// alreadyUp waits until a berth up that another command started serves the kinds of Berth, and prints its kubeconfig, so that a script can use berth up --detach
// more than once.
func (a *app) alreadyUp(ctx context.Context, owner *controlplane.Owner, f *upFlags) error {
	if f.manifests != "" {
		return fmt.Errorf("berth up is already running (process %d): use berth apply -f %s", owner.PID, f.manifests)
	}
	a.say("berth up is already running (process %d)", owner.PID)
	path, err := filepath.Abs(controlplane.KubeconfigPath(f.stateDir))
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, alreadyTimeout)
	defer cancel()
	err = poll(waiting, func() error {
		if now, err := controlplane.FindOwner(f.stateDir); err != nil || now == nil {
			cancel()
			return errors.Join(err, errors.New("it has stopped"))
		}
		to, err := a.connect(&connectionFlags{kubeconfig: path}) // a starting berth up rewrites the file
		if err != nil {
			return err
		}
		return to.client.List(waiting, &v1alpha1.DevServerList{}, client.Limit(1))
	})
	if err != nil {
		return fmt.Errorf("the berth up of process %d is not ready: %w", owner.PID, err)
	}
	_, err = fmt.Fprintln(a.out, readyPrefix+printable.Quote(path))
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

// detachedLog creates a file for the output of berth up. It has its own name until publishLog, because another berth up may be starting at the same time.
func detachedLog(stateDir string) (*os.File, error) {
	root, err := statedir.Make(stateDir)
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(root, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of logs: %w", err)
	}
	log, err := os.CreateTemp(logs, "up-*.starting") // with mode 0600
	if err != nil {
		return nil, fmt.Errorf("create a file for the output of berth up: %w", err)
	}
	return log, nil
}

// publishLog renames the output of berth up to up.log and returns that path. It keeps the previous file, which may explain why an earlier berth up exited.
func publishLog(log *os.File) (string, error) {
	path := filepath.Join(filepath.Dir(log.Name()), "up.log")
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("keep the previous output of berth up: %w", err)
	}
	if err := os.Rename(log.Name(), path); err != nil {
		return "", fmt.Errorf("rename the output of berth up: %w", err)
	}
	return path, nil
}

// detachedArguments returns the command line of the berth up that runs in the background. That process does not show objects, because their changes would fill
// its output.
func detachedArguments(command *cobra.Command) []string {
	arguments := []string{"up", "--hide-objects"}
	command.Flags().Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, is := flag.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			if flag.Name != "detach" {
				arguments = append(arguments, "--"+flag.Name+"="+value)
			}
		}
	})
	return arguments
}
