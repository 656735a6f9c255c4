// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/controllers/process"
)

func (a *app) deleteCommand() *cobra.Command {
	flags := &connectionFlags{}
	var wait waitFlags
	var objects selection
	command := &cobra.Command{
		Use:   "delete KIND/NAME...",
		Short: "Delete objects and stop their processes",
		Long:  "Delete deletes objects. Each object remains until its process has exited, unless the process was adopted and keeps running.",
		Example: "  # Delete two objects, and wait until their processes have exited\n" +
			"  berth delete devserver/web instance/shell --wait",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			to, references, err := objects.open(command.Context(), a, flags, args)
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range references {
				wanted := awaitOptions{timeout: wait.timeout, progress: a.sayProgress(ref)}
				if !wait.enabled {
					wanted.timeout = 0
				}
				said, err := a.remove(command.Context(), to, ref, wanted)
				if errs = append(errs, err); err == nil {
					_, _ = fmt.Fprintf(a.out, "%s\n", said)
				}
			}
			return errors.Join(errs...)
		},
	}
	flags.add(command)
	objects.add(command)
	wait.add(command, "wait until the objects and their processes are gone")
	return command
}

// remove deletes an object. If wanted has a timeout, it waits until the object is gone. It returns a description of the result.
func (a *app) remove(ctx context.Context, to *connection, ref reference, wanted awaitOptions) (string, error) {
	object, err := to.get(ctx, ref)
	if err != nil {
		return "", err
	}
	uid := object.GetUID()
	if err := to.client.Delete(ctx, object, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("delete %s: %w", ref, err)
	}
	if wanted.timeout == 0 {
		return ref.String() + " deletion requested", nil
	}
	wanted.goal = "deleted"
	err = a.await(ctx, to, ref, wanted, func(object process.Object) (bool, error) { return object.GetUID() != uid, nil })
	if err != nil && !errors.Is(err, errMissing) {
		return "", err
	}
	return ref.String() + " deleted", nil
}
