// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host runs incarnations as processes of this machine, each supervised by a berth-shim that outlives the manager.
//
// The files below Options.StateDir are the source of truth; memory holds only what can be restored from them. See internal/shim for the files. A starting
// manager adopts the processes that it finds. No decision rests on a PID alone: an incarnation that cannot be verified is Unknown, and Berth stops or kills its
// processes only if the incarnation is Killable.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// defaultLogLimit is the default of Options.LogLimit, in bytes.
const defaultLogLimit = 10 << 20

// Options configure where a Host keeps its state and how it runs processes.
type Options struct {
	// StateDir is created with mode 0700. Only one manager uses it at a time. It is required.
	StateDir string
	// Standby makes New wait while another manager uses StateDir, until this context ends. If Standby is nil, New returns an error instead.
	Standby context.Context
	// ShimPath is the berth-shim binary. If it is empty, the one beside the running executable is used, else the one in PATH.
	ShimPath string
	// CgroupRoot is the directory of a cgroup2 file system in which the subtree is created. If it is empty, New searches for one.
	CgroupRoot string
	// Containment forces a tier, Cgroup or Subreaper. If it is empty, the tier is Cgroup if that works, else Subreaper.
	Containment string
	// LogLimit is the disk space for the output of one UID, in bytes, at least 64 KiB. 0 means defaultLogLimit.
	LogLimit int64
	// RunAs is the user that programs run as; nil means the user of the manager. Running programs as another user requires root, and so does taking over such
	// programs from an earlier manager.
	RunAs *shim.User
	// ResultsDir is where programs that run as RunAs leave their results, because they cannot enter StateDir. The default is a directory of this install below
	// /var/lib/berth.
	ResultsDir string
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

func (o *Options) complete() error {
	if o.StateDir == "" {
		return errors.New("host runtime: no state directory is set")
	}
	var err error
	if o.StateDir, err = runtime.InstallDir(o.StateDir); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	if o.RunAs != nil && os.Geteuid() != 0 {
		return fmt.Errorf("only root can run programs as another user (%s)", o.RunAs.Name)
	}
	if o.ResultsDir == "" {
		o.ResultsDir = filepath.Join("/var/lib/berth", o.install())
	}
	o.LogLimit = cmp.Or(o.LogLimit, defaultLogLimit)
	if o.LogLimit < 64<<10 {
		return fmt.Errorf("a log limit of %d bytes is too small; set at least 64 KiB", o.LogLimit)
	}
	o.ShimPath, err = runtime.FindProgram("berth-shim", o.ShimPath)
	return err
}

// install returns the name of the install, which is unique to the state directory.
func (o *Options) install() string { return "berth-" + runtime.InstallID(o.StateDir) }
