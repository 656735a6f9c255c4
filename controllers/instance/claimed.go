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

// Place is the session or container that an Instance names, as IndexPlace calls it; empty when it names none.
func Place(instance *v1alpha1.Instance) string { return place(instance) }

// Holds says that the Instance was given what it names and has not let go of it.
func Holds(instance *v1alpha1.Instance) bool { return claim.Live(instance) }

// Claims says that the Instance has what it names, or wants it. One that has ended for good, or is stopped, claims nothing.
func Claims(instance *v1alpha1.Instance) bool {
	return place(instance) != "" && (claim.Live(instance) || claim.Wants(instance))
}
