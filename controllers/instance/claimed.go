// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/claim"
)

// SessionPlace is how IndexPlace calls a tmux session.
func SessionPlace(socket, session string) string { return "tmux " + socket + " " + session }

// ContainerPlace is how IndexPlace calls a container that an Instance names so; it may be named by its name or by its id.
func ContainerPlace(container string) string { return "docker " + container }

// Claims says that the Instance has what it names, or wants it. One that has ended for good, or is stopped, claims nothing.
func Claims(instance *v1alpha1.Instance) bool {
	return Place(instance) != "" && (claim.Live(instance) || claim.Wants(instance))
}
