// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/process"
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

// Competes reports whether the Instance takes part in the contest for the session or container that it names: it has it, or it could start (see
// arbitration.Competes) in a namespace that permits the runtime and the adoption.
func Competes(ctx context.Context, instance *v1alpha1.Instance, permission *process.Permission) (bool, error) {
	switch {
	case Place(instance) == "" || !arbitration.Competes(instance):
		return false, nil
	case arbitration.Live(instance):
		return true, nil
	}
	allowed, err := permission.Allows(ctx, instance.Namespace, typeOf(instance))
	if err != nil || !allowed {
		return false, err
	}
	return permission.AllowsAdoption(ctx, instance.Namespace, adopts(instance))
}
