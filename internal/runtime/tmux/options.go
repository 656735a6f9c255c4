// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Host is the backend that runs the processes, such as host.Host.
type Host interface {
	runtime.Runtime
	runtime.Logs
	runtime.Terminals
	runtime.Inspection
	// Directory returns the directory in which the shim of a UID has its socket.
	Directory(uid types.UID) string
	// Announce sends a UID on Events. It does not block.
	Announce(uid types.UID)
}

// Options configure the backend's files and programs.
type Options struct {
	// Dir contains one file for each UID. It is created with mode 0700. It is required.
	Dir string
	// Tmux is the tmux program, 3.2 or later. Empty: from PATH.
	Tmux string
	// Shim is the berth-shim program, which runs in the windows. Empty: berth-shim in the directory of the running executable, else from PATH.
	Shim string
	// Socket is the default name of the tmux socket. Empty: defaultSocket.
	Socket string
	// RunAs is the user that programs run as; nil means the user of the manager. Only sessions of this user can be found and adopted. The sessions that Berth
	// creates are on the server of the user of the manager, because their windows need access to the shims.
	RunAs *shim.User
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

func (o *Options) complete() error {
	if o.Dir == "" {
		return errors.New("tmux runtime: no directory is set")
	}
	var err error
	if o.Dir, err = runtime.InstallDir(o.Dir); err != nil {
		return fmt.Errorf("directory of the tmux runtime: %w", err)
	}
	if o.Tmux, err = exec.LookPath(cmp.Or(o.Tmux, "tmux")); err != nil {
		return fmt.Errorf("the tmux runtime needs tmux; install it, or use another runtime: %w", err)
	}
	if o.Tmux, err = filepath.Abs(o.Tmux); err != nil {
		return fmt.Errorf("find the path of tmux: %w", err)
	}
	if o.Shim, err = runtime.FindProgram("berth-shim", o.Shim); err != nil {
		return err
	}
	o.Socket = cmp.Or(o.Socket, defaultSocket)
	return checkSocketName(o.Socket)
}
