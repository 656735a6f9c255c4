// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// discoveryKind is the kind InstanceDiscovery, which has no process. berth status prints one line for each object; berth discover prints more details.
var discoveryKind = &kind{
	singular: "instancediscovery", plural: "instancediscoveries", short: "disc",
	shown: func() client.Object { return &v1alpha1.InstanceDiscovery{} },
	list:  func() client.ObjectList { return &v1alpha1.InstanceDiscoveryList{} },
	row: func(object client.Object) row {
		d := object.(*v1alpha1.InstanceDiscovery)
		t := d.Status.Totals
		r := row{ready: "Unknown", reason: v1alpha1.ReasonPending, restarts: "0"}
		r.address = fmt.Sprintf("%d found, %d created, %d known, %d skipped", t.Found, t.Created, t.Known, t.Skipped)
		r.setReady(d.Status.Conditions)
		return r
	},
}

func (a *app) discoverCommand() *cobra.Command {
	flags := &connectionFlags{}
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "discover [NAME...]",
		Short: "Discover sessions and containers now and show the results",
		Long: "Discover changes spec.refreshToken of each InstanceDiscovery, so that it searches now. Discover waits for the results and shows them.\n" +
			"Without NAME it refreshes all InstanceDiscoveries of the namespace.",
		Example: "  # Search with all InstanceDiscoveries of the namespace\n" +
			"  berth discover\n\n" +
			"  # Search with one InstanceDiscovery\n" +
			"  berth discover agents",
		RunE: func(command *cobra.Command, args []string) error {
			return a.discover(command.Context(), flags, args, timeout)
		},
	}
	flags.add(command)
	command.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return command
}

func (a *app) discover(ctx context.Context, flags *connectionFlags, names []string, timeout time.Duration) error {
	to, err := a.connect(flags)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		if names, err = to.discoveries(ctx); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		a.say("no InstanceDiscovery in namespace %s", to.namespace)
		return nil
	}
	token, err := newToken(a.clock.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var errs []error
	for _, name := range names {
		errs = append(errs, to.refresh(ctx, name, token))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	cells := [][]string{{"SOURCE", "NAME", "ID", "OUTCOME", "INSTANCE", "WHY"}}
	for _, name := range names {
		d, err := a.awaitDiscovery(ctx, to, name, token, timeout)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, found := range d.Status.Found {
			why := found.Message
			if why == "" {
				why = found.Reason
			}
			instance := referenceFrom(d.Namespace, found.InstanceRef)
			cells = append(cells, []string{found.Source, clean(found.Name), clean(found.ID), string(found.Outcome), instance, clean(why)})
		}
		if r := discoveryKind.show(d); r.message != "" {
			errs = append(errs, fmt.Errorf("%s: %s: %s", r.name, r.reason, r.message))
		}
	}
	for _, line := range align(cells) {
		_, _ = fmt.Fprintln(a.out, line)
	}
	return errors.Join(errs...)
}

// referenceFrom returns the name of the object that ref names, with its namespace if that is not the given one. It returns "" if ref is nil.
func referenceFrom(namespace string, ref *v1alpha1.NamespacedReference) string {
	switch {
	case ref == nil:
		return ""
	case ref.Namespace == namespace:
		return ref.Name
	}
	return ref.Namespace + "/" + ref.Name
}

// discoveries returns the names of all InstanceDiscoveries in the namespace.
func (c *connection) discoveries(ctx context.Context) ([]string, error) {
	list := &v1alpha1.InstanceDiscoveryList{}
	if err := c.client.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
		return nil, fmt.Errorf("list instancediscoveries: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

func (c *connection) refresh(ctx context.Context, name, token string) error {
	d := &v1alpha1.InstanceDiscovery{}
	d.Namespace, d.Name = c.namespace, name
	patch := fmt.Appendf(nil, `{"spec":{"refreshToken":%q}}`, token)
	err := c.client.Patch(ctx, d, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("instancediscovery/%s %w in namespace %q: to list all, run berth status disc -A", name, errMissing, c.namespace)
	}
	if err != nil {
		return fmt.Errorf("refresh instancediscovery/%s: %w", name, err)
	}
	return nil
}

// awaitDiscovery polls until the manager has carried out the refresh request with the given token, or a later request.
func (a *app) awaitDiscovery(ctx context.Context, to *connection, name, token string, timeout time.Duration) (*v1alpha1.InstanceDiscovery, error) {
	tick := a.clock.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		d := &v1alpha1.InstanceDiscovery{}
		err := to.client.Get(ctx, client.ObjectKey{Namespace: to.namespace, Name: name}, d)
		if err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("read instancediscovery/%s: %w", name, err)
		}
		if seen := d.Status.ObservedRefreshToken; err == nil && (seen == token || seen != "" && seen == d.Spec.RefreshToken) {
			return d, nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, fmt.Errorf("instancediscovery/%s did not search within %s: is a manager running?", name, timeout)
			}
			return nil, ctx.Err()
		case <-tick.C():
		}
	}
}
