// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// fieldOwner is the field owner of the changes that the commands make.
const fieldOwner = "berth-cli"

func (a *app) restartCommand() *cobra.Command {
	objects := &selection{refuseRuns: "restart"}
	var wait waitFlags
	command := &cobra.Command{
		Use:   "restart KIND/NAME...",
		Short: "Restart processes",
		Long: "Restart requests a new start (incarnation) of each process by changing spec.restartToken. Several requests before the new start count as one.\n" +
			"While the new start would fail, for example because the working directory is missing, the old process keeps running, and the condition DriftDetected states why.\n" +
			"With --wait, restart returns when the new incarnation is ready, and fails if it cannot become ready.",
		Example: "  # Restart a dev server\n" +
			"  berth restart devserver/web\n\n" +
			"  # Restart two processes, one after the other, and wait until each is ready\n" +
			"  berth restart devserver/web languageserver/gopls --wait\n\n" +
			"  # Restart all dev servers with a label\n" +
			"  berth restart devservers -l app=shop",
		RunE: func(command *cobra.Command, args []string) error {
			token := newToken(a.clock.Now())
			return objects.each(command.Context(), a, args, func(to *connection, ref reference) error {
				object, err := to.change(command.Context(), ref, map[string]any{"restartToken": token})
				if err != nil {
					return err
				}
				if object.GetProcessSpec().State == v1alpha1.StateStopped {
					return fmt.Errorf("%s is stopped, so it cannot be restarted: run berth start %s", ref, ref)
				}
				objects.changed = append(objects.changed, object)
				said := "restart requested"
				if wait.enabled {
					said = "restarted"
					if err := a.awaitChange(command.Context(), to, ref, object, awaitOptions{timeout: wait.timeout, progress: a.sayProgress(ref)}); err != nil {
						return err
					}
				}
				_, err = fmt.Fprintf(a.out, "%s %s\n", ref, said)
				return err
			})
		},
	}
	objects.addTo(a, command)
	wait.add(command, "wait until the new incarnation is ready")
	return command
}

// newToken returns a unique token that begins with the creation time in RFC 3339 format, for human readers.
func newToken(now time.Time) string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return now.UTC().Format(time.RFC3339Nano) + "-" + hex.EncodeToString(random)
}

func (a *app) stopCommand() *cobra.Command {
	return a.stateCommand("stop", "Stop processes and cancel runs", v1alpha1.StateStopped)
}

func (a *app) startCommand() *cobra.Command {
	return a.stateCommand("start", "Start stopped processes", v1alpha1.StateRunning)
}

func (a *app) stateCommand(name, short string, state v1alpha1.ProcessState) *cobra.Command {
	objects := &selection{}
	if state == v1alpha1.StateRunning {
		objects.refuseRuns = name
	}
	var wait waitFlags
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
		RunE: func(command *cobra.Command, args []string) error {
			return objects.each(command.Context(), a, args, func(to *connection, ref reference) error {
				if ref.kind.once {
					return a.cancelRun(command.Context(), to, ref)
				}
				object, said, err := to.setState(command.Context(), ref, state)
				if err != nil {
					return err
				}
				if said == "" {
					said = name + " requested"
					objects.changed = append(objects.changed, object)
				}
				_, _ = fmt.Fprintf(a.out, "%s %s\n", ref, said)
				if !wait.enabled {
					return nil
				}
				return a.awaitChange(command.Context(), to, ref, object, awaitOptions{timeout: wait.timeout, progress: a.sayProgress(ref)})
			})
		},
	}
	objects.addTo(a, command)
	wait.add(command, "wait until the change is complete")
	return command
}

// setState sets spec.state and returns the updated object. If the object that is to run already has the state, setState changes nothing and returns a remark.
func (c *connection) setState(ctx context.Context, ref reference, state v1alpha1.ProcessState) (object process.Object, remark string, err error) {
	if state == v1alpha1.StateRunning {
		before, err := c.get(ctx, ref)
		if err != nil {
			return nil, "", err
		}
		if before.GetProcessSpec().State == state {
			return before, fmt.Sprintf("already has the state Running; to retry it, run berth restart %s", ref), nil
		}
		ref = ref.of(before)
	}
	object, err = c.change(ctx, ref, map[string]any{"state": state})
	return object, "", err
}

// change applies a merge patch to fields of the spec and returns the updated object. It does not need the previous values of the fields. If the reference has
// a UID, change fails if another object has the name now.
func (c *connection) change(ctx context.Context, ref reference, fields map[string]any) (process.Object, error) {
	object := ref.kind.newObject().(process.Object)
	object.SetNamespace(c.namespace)
	object.SetName(ref.name)
	object.SetUID(ref.uid)
	return object, c.changeSpec(ctx, object, ref.String(), "change", listObjects, fields)
}

// changeSpec applies a merge patch to fields of the spec of an object. If the object has a UID, the patch contains it, and the API server refuses the patch if the
// object was deleted and recreated. The other parameters are those of explainRequest.
func (c *connection) changeSpec(ctx context.Context, object client.Object, name, doing, list string, fields map[string]any) error {
	uid, change := object.GetUID(), map[string]any{"spec": fields}
	if uid != "" {
		change["metadata"] = map[string]any{"uid": uid}
	}
	patch, err := json.Marshal(change)
	if err == nil {
		err = c.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	}
	return explainRequest(c.explainUID(ctx, err, object, uid, name), object.GetNamespace(), name, doing, list)
}

// explainUID returns the error of a request that was limited to the object with a UID. If another object has its name now, the error states that.
func (c *connection) explainUID(ctx context.Context, err error, object client.Object, uid types.UID, name string) error {
	if uid == "" || !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return err
	}
	now := object.DeepCopyObject().(client.Object)
	if c.client.Get(ctx, client.ObjectKeyFromObject(object), now) == nil && now.GetUID() != uid {
		return errRecreated{name}
	}
	return err
}

// errRecreated is the error of a request for an object whose name another object has now. It contains the name of the object.
type errRecreated struct{ name string }

func (e errRecreated) Error() string {
	return fmt.Sprintf("%s was deleted and recreated in the meantime, and the new object is unchanged: see berth status %s, then repeat the request", e.name, e.name)
}

func (a *app) deleteCommand() *cobra.Command {
	var wait waitFlags
	objects := &selection{}
	command := &cobra.Command{
		Use:   "delete KIND/NAME...",
		Short: "Delete objects and stop their processes",
		Long:  "Delete deletes objects. Each object remains until its process has exited, unless the process was adopted and keeps running.",
		Example: "  # Delete two objects, and wait until their processes have exited\n" +
			"  berth delete devserver/web instance/shell --wait",
		RunE: func(command *cobra.Command, args []string) error {
			return objects.each(command.Context(), a, args, func(to *connection, ref reference) error {
				var wanted awaitOptions
				if wait.enabled {
					wanted = awaitOptions{timeout: wait.timeout, progress: a.sayProgress(ref)}
				}
				said, err := a.remove(command.Context(), to, ref, wanted)
				if err == nil {
					_, err = fmt.Fprintln(a.out, said)
				}
				return err
			})
		},
	}
	objects.addTo(a, command)
	wait.add(command, "wait until the objects and their processes are gone")
	return command
}

// remove deletes an object. If wanted has a timeout, it waits until the object is gone. It returns a description of the result.
func (a *app) remove(ctx context.Context, to *connection, ref reference, wanted awaitOptions) (string, error) {
	object, err := to.get(ctx, ref)
	if err != nil {
		return "", err
	}
	uid := cmp.Or(ref.uid, object.GetUID())
	if err := to.client.Delete(ctx, object, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return "", explainRequest(to.explainUID(ctx, err, object, uid, ref.String()), to.namespace, ref.String(), "delete", listObjects)
	}
	if wanted.timeout == 0 {
		return ref.String() + " deletion requested", nil
	}
	wanted.goal = goalDeleted
	ref.uid = uid
	err = a.await(ctx, to, ref, wanted, func(process.Object) (bool, error) { return false, nil })
	if err != nil && !errors.Is(err, errMissing) {
		return "", err
	}
	return ref.String() + " deleted", nil
}
