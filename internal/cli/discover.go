// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
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
		keys, err := to.keys(ctx, discoveryKind.list())
		if err != nil {
			return fmt.Errorf("list instancediscoveries: %w", err)
		}
		for _, key := range keys {
			names = append(names, key.Name)
		}
	}
	if len(names) == 0 {
		a.say("no InstanceDiscovery in namespace %s", to.namespace)
		return nil
	}
	token := newToken(a.clock.Now())
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
		d, err := to.awaitDiscovery(ctx, name, token, timeout)
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

func (c *connection) refresh(ctx context.Context, name, token string) error {
	d := &v1alpha1.InstanceDiscovery{}
	d.Namespace, d.Name = c.namespace, name
	return c.changeSpec(ctx, d, "instancediscovery/"+name, "refresh", "all, run berth status disc -A", map[string]any{"refreshToken": token})
}

// awaitDiscovery polls until the manager has carried out the refresh request with the given token, or a later request.
func (c *connection) awaitDiscovery(ctx context.Context, name, token string, timeout time.Duration) (d *v1alpha1.InstanceDiscovery, err error) {
	err = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		d = &v1alpha1.InstanceDiscovery{}
		err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, d)
		if err != nil && ctx.Err() == nil {
			return false, fmt.Errorf("read instancediscovery/%s: %w", name, err)
		}
		seen := d.Status.ObservedRefreshToken
		return err == nil && (seen == token || seen != "" && seen == d.Spec.RefreshToken), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("instancediscovery/%s did not search within %s: is a manager running?", name, timeout)
	}
	return d, err
}
