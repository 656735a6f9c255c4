// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

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
	var wanted []client.Object
	for _, name := range names {
		wanted = append(wanted, &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: to.namespace, Name: name}})
	}
	if len(names) == 0 {
		if wanted, err = listKind(ctx, to.client, discoveryKind, to.namespace, true); err != nil {
			return err
		}
	}
	if len(wanted) == 0 {
		a.say("no InstanceDiscovery in namespace %s", to.namespace)
		return nil
	}
	token := newToken(a.clock.Now())
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var errs []error
	for _, d := range wanted {
		errs = append(errs, to.refresh(ctx, d, token))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	cells := [][]string{{"SOURCE", "NAME", "ID", "OUTCOME", "INSTANCE", "WHY"}}
	for _, refreshed := range wanted {
		d, err := to.awaitDiscovery(ctx, refreshed, token, timeout)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, found := range d.Status.Found {
			instance, why := referenceFrom(d.Namespace, found.InstanceRef), clean(cmp.Or(found.Message, found.Reason))
			cells = append(cells, []string{found.Source, clean(found.Name), clean(found.ID), string(found.Outcome), instance, why})
		}
		if r := rowOf(d); r.message != "" {
			errs = append(errs, fmt.Errorf("%s: %s: %s", r.name, r.reason, r.message))
		}
	}
	errs = append(errs, a.print(align(cells)))
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

func (c *connection) refresh(ctx context.Context, d client.Object, token string) error {
	return c.changeSpec(ctx, d, "instancediscovery/"+d.GetName(), "refresh", "all, run berth status disc -A", map[string]any{"refreshToken": token})
}

// awaitDiscovery polls until the manager has carried out the refresh request with the given token, or a later request, for an object that refresh has changed.
func (c *connection) awaitDiscovery(ctx context.Context, refreshed client.Object, token string, timeout time.Duration) (d *v1alpha1.InstanceDiscovery, err error) {
	name := refreshed.GetName()
	err = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		d = &v1alpha1.InstanceDiscovery{}
		err := c.client.Get(ctx, c.key(name), d)
		if err != nil && ctx.Err() == nil {
			return false, fmt.Errorf("read instancediscovery/%s: %w", name, err)
		}
		if err == nil && d.UID != refreshed.GetUID() {
			return false, errRecreated{"instancediscovery/" + name}
		}
		seen := d.Status.ObservedRefreshToken
		return err == nil && (seen == token || seen != "" && seen == d.Spec.RefreshToken), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("instancediscovery/%s did not search within %s: is a manager running?", name, timeout)
	}
	return d, err
}
