// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// fieldOwner is the field owner of the changes that the commands make.
const fieldOwner = "berth-cli"

func (a *app) restartCommand() *cobra.Command {
	flags := &connectionFlags{}
	var wait waitFlags
	var objects selection
	command := &cobra.Command{
		Use:   "restart KIND/NAME...",
		Short: "Restart processes",
		Long: "Restart requests a new start (incarnation) of each process by changing spec.restartToken. Several requests before the new start count as one.\n" +
			"With --wait, restart returns when the new incarnation is ready, and fails if it cannot become ready.",
		Example: "  # Restart a dev server\n" +
			"  berth restart devserver/web\n\n" +
			"  # Restart two processes, one after the other, and wait until each is ready\n" +
			"  berth restart devserver/web languageserver/gopls --wait\n\n" +
			"  # Restart all dev servers with a label\n" +
			"  berth restart devservers -l app=shop",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.restart(command.Context(), flags, args, &objects, wait)
		},
	}
	flags.add(command)
	objects.add(command)
	wait.add(command, "wait until the new incarnation is ready")
	return command
}

func (a *app) restart(ctx context.Context, flags *connectionFlags, args []string, objects *selection, wait waitFlags) error {
	to, references, err := objects.open(ctx, a, flags, args)
	if err != nil {
		return err
	}
	if err := refuseRuns(references, "restart"); err != nil {
		return err
	}
	token := newToken(a.clock.Now())
	var errs []error
	var changed []row
	defer func() { a.warnSilent(ctx, to, changed...) }()
	for _, ref := range references {
		object, err := to.change(ctx, ref, map[string]any{"restartToken": token})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if object.GetProcessSpec().State == v1alpha1.StateStopped {
			errs = append(errs, fmt.Errorf("%s is stopped, so it cannot be restarted: run berth start %s", ref, ref))
			continue
		}
		changed = append(changed, makeRow(ref.kind, object))
		if !wait.enabled {
			_, _ = fmt.Fprintf(a.out, "%s restart requested\n", ref)
			continue
		}
		if err := a.awaitReady(ctx, to, ref, awaitOptions{generation: object.GetGeneration(), token: token, timeout: wait.timeout, progress: a.sayProgress(ref)}); err != nil {
			errs = append(errs, err)
			continue
		}
		_, _ = fmt.Fprintf(a.out, "%s restarted\n", ref)
	}
	return errors.Join(errs...)
}

// newToken returns a unique token that begins with the creation time in RFC 3339 format, for human readers.
func newToken(now time.Time) string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return now.UTC().Format(time.RFC3339Nano) + "-" + hex.EncodeToString(random)
}

func (a *app) stopCommand() *cobra.Command {
	return a.stateCommand("stop", "Stop processes and cancel runs", v1alpha1.StateStopped, "stop requested")
}

func (a *app) startCommand() *cobra.Command {
	return a.stateCommand("start", "Start stopped processes", v1alpha1.StateRunning, "start requested")
}

func (a *app) stateCommand(name, short string, state v1alpha1.ProcessState, said string) *cobra.Command {
	flags := &connectionFlags{}
	var wait waitFlags
	var objects selection
	command := &cobra.Command{
		Use:   name + " KIND/NAME...",
		Short: short,
		Long: short + " by setting spec.state to " + string(state) + ". The objects are kept. Objects that already have this state are not changed.\n" +
			"A StrategyRun is executed once: berth stop cancels it by setting spec.state to " + string(v1alpha1.RunCancelled) + ", and berth start rejects it.",
		Example: "  berth " + name + " devserver/web instance/shell\n\n" +
			"  # Wait until the change is complete\n" +
			"  berth " + name + " devserver/web --wait --timeout 30s\n\n" +
			"  # All dev servers of the namespace\n" +
			"  berth " + name + " devservers --all",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			to, references, err := objects.open(command.Context(), a, flags, args)
			if err != nil {
				return err
			}
			if state == v1alpha1.StateRunning {
				if err := refuseRuns(references, name); err != nil {
					return err
				}
			}
			var errs []error
			var changed []row
			for _, ref := range references {
				if ref.kind.once {
					errs = append(errs, a.cancelRun(command.Context(), to, ref))
					continue
				}
				if state == v1alpha1.StateRunning {
					if before, err := to.get(command.Context(), ref); err == nil && before.GetProcessSpec().State == state {
						_, _ = fmt.Fprintf(a.out, "%s already has the state Running; to retry it, run berth restart %s\n", ref, ref)
						if wait.enabled {
							errs = append(errs, a.awaitState(command.Context(), to, ref, before, wait.timeout))
						}
						continue
					}
				}
				object, err := to.change(command.Context(), ref, map[string]any{"state": state})
				if err != nil {
					errs = append(errs, err)
					continue
				}
				changed = append(changed, makeRow(ref.kind, object))
				_, _ = fmt.Fprintf(a.out, "%s %s\n", ref, said)
				if wait.enabled {
					errs = append(errs, a.awaitState(command.Context(), to, ref, object, wait.timeout))
				}
			}
			a.warnSilent(command.Context(), to, changed...)
			return errors.Join(errs...)
		},
	}
	flags.add(command)
	objects.add(command)
	wait.add(command, "wait until the change is complete")
	return command
}

// change applies a merge patch to fields of the spec and returns the updated object. It does not need the previous values of the fields.
func (c *connection) change(ctx context.Context, ref reference, fields map[string]any) (process.Object, error) {
	object := ref.kind.object()
	object.SetNamespace(c.namespace)
	object.SetName(ref.name)
	return object, c.changeSpec(ctx, object, ref.String(), "change", listObjects, fields)
}

// changeSpec applies a merge patch to fields of the spec of an object. The other parameters are those of explainRequest.
func (c *connection) changeSpec(ctx context.Context, object client.Object, name, doing, list string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": fields})
	if err == nil {
		err = c.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	}
	return explainRequest(err, object.GetNamespace(), name, doing, list)
}
