// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host runs incarnations as processes of this machine, each held by a berth-shim that outlives the manager.
//
// What is on disk below Options.StateDir is the truth; memory only holds what can be opened again: see internal/shim for the files.
// A manager that starts adopts what it finds. Nothing is decided by a PID alone, and what cannot be verified is Unknown and not touched.
package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/berth-dev/berth/internal/shim"
)

// DefaultLogLimit is how much disk the output of one UID takes, in bytes.
const DefaultLogLimit = 10 << 20

// Options say where a Host keeps its state and how it holds processes.
type Options struct {
	// StateDir is created with mode 0700. One manager uses it at a time.
	StateDir string
	// Standby makes New wait, until this context ends, while another manager uses StateDir. nil: New returns an error then.
	Standby context.Context
	// ShimPath is the berth-shim binary. Empty: beside the running executable, else in PATH.
	ShimPath string
	// CgroupRoot is a directory of a cgroup2 file system to make a subtree in. Empty: found.
	CgroupRoot string
	// Containment forces a tier, Cgroup or Subreaper. Empty: Cgroup where it works, else Subreaper.
	Containment string
	// LogLimit is the disk that the output of one UID takes, in bytes. 0: DefaultLogLimit.
	LogLimit int64
	// RunAs is the user that programs run as; nil: the user of the manager. Another user needs root, and so does a manager that takes over its processes.
	RunAs *shim.User
	// ResultsDir is where programs of RunAs leave their results, which cannot enter StateDir. Empty: a directory of this install below /var/lib/berth.
	ResultsDir string
	// Logger is told what the manager should know; the zero value drops it.
	Logger logr.Logger
}

func (o *Options) complete() error {
	if o.StateDir == "" {
		return errors.New("host runtime: no state directory was given")
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", o.StateDir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	// Two names of one directory are one install.
	if o.StateDir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("state directory %s: %w", dir, err)
	}
	if o.RunAs != nil && os.Geteuid() != 0 {
		return fmt.Errorf("only root can run programs as another user, here %s", o.RunAs.Name)
	}
	if o.ResultsDir == "" {
		o.ResultsDir = filepath.Join("/var/lib/berth", o.install())
	}
	if o.LogLimit == 0 {
		o.LogLimit = DefaultLogLimit
	}
	if o.LogLimit < 64<<10 {
		return fmt.Errorf("a log limit of %d bytes is too small; give at least 64 KiB", o.LogLimit)
	}
	if o.Logger.GetSink() == nil {
		o.Logger = logr.Discard()
	}
	if o.ShimPath == "" {
		if o.ShimPath, err = findShim(); err != nil {
			return err
		}
	}
	if o.ShimPath, err = filepath.Abs(o.ShimPath); err != nil {
		return err
	}
	if _, err := os.Stat(o.ShimPath); err != nil {
		return fmt.Errorf("berth-shim, which holds the processes: %w", err)
	}
	return nil
}

func findShim() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "berth-shim")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath("berth-shim")
	if err != nil {
		return "", fmt.Errorf("berth-shim is neither beside this program nor in PATH; install it beside: %w", err)
	}
	return path, nil
}

// install names the install of a state directory, so that two never meet.
func (o *Options) install() string {
	sum := sha256.Sum256([]byte(o.StateDir))
	return "berth-" + hex.EncodeToString(sum[:6])
}
