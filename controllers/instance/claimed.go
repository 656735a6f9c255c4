// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
)

// SessionPlace returns the value of IndexPlace for a tmux session.
func SessionPlace(socket, session string) string { return "tmux " + socket + " " + session }

// ContainerPlace returns the value of IndexPlace for a container. container is its name or its ID, whichever the Instance specifies.
func ContainerPlace(container string) string { return "docker " + container }

// Claims reports whether the Instance has or wants the session or container that it names. An Instance that is stopped, or whose process has exited and is not
// restarted, claims nothing.
func Claims(instance *v1alpha1.Instance) bool {
	return Place(instance) != "" && (arbitration.Live(instance) || arbitration.Wants(instance))
}
