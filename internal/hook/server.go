// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Location is where the manager receives reports.
type Location struct {
	// Dir is the directory of the socket.
	Dir string
	// Shared reports that other users may connect, because programs run as another user than the manager: as User.
	Shared bool
	User   uint32
}

// Socket returns the path of the socket; empty if there is none.
func (l Location) Socket() string {
	if l.Dir == "" {
		return ""
	}
	return filepath.Join(l.Dir, SocketFile)
}

// Locate returns where the manager with a state directory receives reports. Programs that run as another user cannot enter the state directory; runAs is nil if
// they run as the user of the manager.
func Locate(stateDir string, runAs *shim.User) Location {
	if absolute, err := filepath.Abs(stateDir); err == nil {
		stateDir = absolute
	}
	if runAs != nil {
		return Location{Dir: filepath.Join("/run/berth", runtime.InstallID(stateDir)), Shared: true, User: runAs.UID}
	}
	return Location{Dir: stateDir}
}

// Object identifies an incarnation of an Instance.
type Object struct {
	UID         types.UID
	Incarnation int64
}

// Server receives reports. It is a manager.Runnable that runs only on the leader.
type Server struct {
	Location

	// Find returns the Instance whose running program is a process of a boot of the machine.
	Find func(ctx context.Context, boot string, process procstat.Process) (object Object, found bool)
	// Reports receives the reports that are accepted.
	Reports *Tracker
	Log     logr.Logger
}

// NeedLeaderElection returns true, because only the leader uses the state directory.
func (*Server) NeedLeaderElection() bool { return true }
