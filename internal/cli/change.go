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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// fieldOwner is the field owner of the changes that the commands make.
const fieldOwner = "berth-cli"

const pollEvery = 200 * time.Millisecond

func (a *app) restartCommand() *cobra.Command {
	flags := &connectionFlags{}
	var wait bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "restart KIND/NAME...",
		Short: "Restart processes",
		Long: "Restart requests a new start (incarnation) of each process by changing spec.restartToken. Several requests before the new start count as one.\n" +
			"With --wait, restart returns when the new incarnation is ready, and fails if it cannot become ready.",
		Example: "  # Restart a dev server\n" +
			"  berth restart devserver/web\n\n" +
			"  # Restart two processes, one after the other, and wait until each is ready\n" +
			"  berth restart devserver/web languageserver/gopls --wait",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.restart(command.Context(), flags, args, wait, timeout)
		},
	}
	flags.add(command)
	command.Flags().BoolVar(&wait, "wait", false, "wait until the new incarnation is ready")
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return command
}

func (a *app) restart(ctx context.Context, flags *connectionFlags, args []string, wait bool, timeout time.Duration) error {
	references, err := parseReferences(args)
	if err != nil {
		return err
	}
	if err := refuseRuns(references, "restart"); err != nil {
		return err
	}
	to, err := a.connect(flags)
	if err != nil {
		return err
	}
	token, err := newToken(a.clock.Now())
	if err != nil {
		return err
	}
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
		if !wait {
			_, _ = fmt.Fprintf(a.out, "%s restart requested\n", ref)
			continue
		}
		if err := a.awaitReady(ctx, to, ref, awaitOptions{generation: object.GetGeneration(), token: token, timeout: timeout}); err != nil {
			errs = append(errs, err)
			continue
		}
		_, _ = fmt.Fprintf(a.out, "%s restarted\n", ref)
	}
	return errors.Join(errs...)
}

// newToken returns a unique token that begins with the creation time in RFC 3339 format, for human readers.
func newToken(now time.Time) (string, error) {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("generate a token: %w", err)
	}
	return now.UTC().Format(time.RFC3339Nano) + "-" + hex.EncodeToString(random), nil
}

// awaitOptions describe what a command waits for after it has changed an object.
type awaitOptions struct {
	// generation is the generation of the object after the change.
	generation int64
	// token is the restart token that the change has set, or that the object had before.
	token   string
	timeout time.Duration
	// goal describes what the command waits for in messages, such as stopped. Empty means ready.
	goal string
	// progress, if not nil, is called with the object whenever it was read.
	progress func(process.Object)
}

// awaitReady polls until the incarnation that was started for the change, or a later one, is ready. It returns an error if that incarnation cannot become
// ready, or if it is not ready within the timeout.
func (a *app) awaitReady(ctx context.Context, to *connection, ref reference, wanted awaitOptions) error {
	return a.await(ctx, to, ref, wanted, func(object process.Object) (bool, error) { return answered(object, wanted.generation, wanted.token) })
}

// await polls until done returns true or an error, at most for the timeout of wanted.
func (a *app) await(ctx context.Context, to *connection, ref reference, wanted awaitOptions, done func(process.Object) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, wanted.timeout)
	defer cancel()
	tick := a.clock.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		object, err := to.get(ctx, ref)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil {
			if wanted.progress != nil {
				wanted.progress(object)
			}
			switch reached, err := done(object); {
			case err != nil:
				return fmt.Errorf("%s: %w", ref, err)
			case reached:
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%w: %s is not %s after %s: see berth status %s and berth logs %s", errTimeout, ref, cmp.Or(wanted.goal, "ready"), wanted.timeout, ref, ref)
			}
			return ctx.Err()
		case <-tick.C():
		}
	}
}

// answered reports whether the new incarnation is ready. It returns an error if that incarnation cannot become ready. An incarnation that was started for a
// newer restart request of another client counts too.
func answered(object process.Object, generation int64, token string) (bool, error) {
	status := object.GetProcessStatus()
	if status.ObservedGeneration < generation {
		return false, nil
	}
	if stalled := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled); stalled != nil && stalled.Status == metav1.ConditionTrue {
		return false, fmt.Errorf("%s: %s", stalled.Reason, clean(stalled.Message))
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonStopped {
		return false, fmt.Errorf("%s: %s", ready.Reason, clean(ready.Message))
	}
	newer := object.GetProcessSpec().RestartToken
	if status.ObservedRestartToken != token && status.ObservedRestartToken != newer {
		return false, nil
	}
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRestarting), nil
}

func (a *app) stopCommand() *cobra.Command {
	return a.stateCommand("stop", "Stop processes and cancel runs", v1alpha1.StateStopped, "stop requested")
}

func (a *app) startCommand() *cobra.Command {
	return a.stateCommand("start", "Start stopped processes", v1alpha1.StateRunning, "start requested")
}

func (a *app) stateCommand(name, short string, state v1alpha1.ProcessState, said string) *cobra.Command {
	flags := &connectionFlags{}
	var wait bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   name + " KIND/NAME...",
		Short: short,
		Long: short + " by setting spec.state to " + string(state) + ". The objects are kept. Objects that already have this state are not changed.\n" +
			"A StrategyRun is executed once: berth stop cancels it by setting spec.state to " + string(v1alpha1.RunCancelled) + ", and berth start rejects it.",
		Example: "  berth " + name + " devserver/web instance/shell\n\n" +
			"  # Wait until the change is complete\n" +
			"  berth " + name + " devserver/web --wait --timeout 30s",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			references, err := parseReferences(args)
			if err != nil {
				return err
			}
			if state == v1alpha1.StateRunning {
				if err := refuseRuns(references, name); err != nil {
					return err
				}
			}
			to, err := a.connect(flags)
			if err != nil {
				return err
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
						if wait {
							errs = append(errs, a.awaitState(command.Context(), to, ref, before, timeout))
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
				if wait {
					errs = append(errs, a.awaitState(command.Context(), to, ref, object, timeout))
				}
			}
			a.warnSilent(command.Context(), to, changed...)
			return errors.Join(errs...)
		},
	}
	flags.add(command)
	command.Flags().BoolVar(&wait, "wait", false, "wait until the change is complete")
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return command
}

// awaitState waits until an object that was started is ready, or until an object that was stopped has no process.
func (a *app) awaitState(ctx context.Context, to *connection, ref reference, object process.Object, timeout time.Duration) error {
	wanted := awaitOptions{generation: object.GetGeneration(), token: object.GetProcessSpec().RestartToken, timeout: timeout}
	if object.GetProcessSpec().State != v1alpha1.StateStopped {
		return a.awaitReady(ctx, to, ref, wanted)
	}
	return a.awaitStopped(ctx, to, ref, wanted)
}

// awaitStopped waits until an object has no process.
func (a *app) awaitStopped(ctx context.Context, to *connection, ref reference, wanted awaitOptions) error {
	wanted.goal = "stopped"
	return a.await(ctx, to, ref, wanted, func(object process.Object) (bool, error) {
		status := object.GetProcessStatus()
		return status.ObservedGeneration >= wanted.generation && status.Process == nil, nil
	})
}

func (a *app) deleteCommand() *cobra.Command {
	flags := &connectionFlags{}
	var wait bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "delete KIND/NAME...",
		Short: "Delete objects and stop their processes",
		Long:  "Delete deletes objects. Each object remains until its process has exited, unless the process was adopted and keeps running.",
		Example: "  # Delete two objects, and wait until their processes have exited\n" +
			"  berth delete devserver/web instance/shell --wait",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			references, err := parseReferences(args)
			if err != nil {
				return err
			}
			to, err := a.connect(flags)
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range references {
				wanted := awaitOptions{timeout: timeout}
				if !wait {
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
	command.Flags().BoolVar(&wait, "wait", false, "wait until the objects and their processes are gone")
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
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

// change applies a merge patch to fields of the spec and returns the updated object. It does not need the previous values of the fields.
func (c *connection) change(ctx context.Context, ref reference, fields map[string]any) (process.Object, error) {
	patch, err := json.Marshal(map[string]any{"spec": fields})
	if err != nil {
		return nil, fmt.Errorf("change %s: %w", ref, err)
	}
	object := ref.kind.object()
	object.SetNamespace(c.namespace)
	object.SetName(ref.name)
	err = c.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("change %s: %w", ref, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w in namespace %q: to list all objects, run berth status -A", ref, errMissing, c.namespace)
	}
	return object, nil
}
