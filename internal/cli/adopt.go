// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/hosts"
)

// leaseWatch is how long adopt watches the Lease of a host before it considers the host gone. It is longer than the interval at which managers renew Leases.
const leaseWatch = hosts.Interval + 5*time.Second

// adoption holds the values of the flags of adopt.
type adoption struct {
	connectionFlags
	host, stateDir, namespace string
	gone                      bool
}

func (a *app) adoptCommand() *cobra.Command {
	flags := &adoption{}
	command := &cobra.Command{
		Use:   "adopt KIND/NAME...",
		Short: "Move objects from another host to this one",
		Long: "A host is a machine together with the state directory of its manager. Several hosts can use one API server, and each object that runs on a machine " +
			"belongs to one host, which its label " + v1alpha1.LabelHost + " names. Adopt changes that label. " +
			"The former host stops the process, then the new host starts it.\n\n" +
			"If the former host will never return, add --host-is-gone. The new host then starts the process without waiting for the former host. " +
			"Use this flag only if the machine or its state directory is gone: otherwise the process would run twice. " +
			"With this flag, adopt first watches the Lease of the former host for " + leaseWatch.String() + ", and fails if that host still renews it.",
		Example: "  # Move a dev server to this machine\n" +
			"  berth adopt devserver/web\n\n" +
			"  # Move a session to another host\n" +
			"  berth adopt instance/shell --host builder-7-1a2b3c4d\n\n" +
			"  # Move a dev server from a machine that no longer exists to this machine\n" +
			"  berth adopt devserver/web --host-is-gone",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(&flags.connectionFlags, kinds),
		RunE:              func(command *cobra.Command, args []string) error { return a.adopt(command.Context(), flags, args) },
	}
	flags.add(command)
	command.Flags().StringVar(&flags.host, "host", "", "host to move the objects to; default: the host of --state-dir on this machine")
	command.Flags().StringVar(&flags.stateDir, "state-dir", defaultStateDir(), "state directory of the manager on this machine")
	command.Flags().StringVar(&flags.namespace, "lease-namespace", endpoint.Namespace, "namespace of the Leases of the hosts")
	command.Flags().BoolVar(&flags.gone, "host-is-gone", false, "the former host will never return; start without waiting for it")
	return command
}

func (a *app) adopt(ctx context.Context, flags *adoption, args []string) error {
	references, err := parseReferences(kinds, args, false)
	if err != nil {
		return err
	}
	target := flags.host
	if target == "" {
		if target, err = hosts.Known(flags.stateDir); err != nil {
			return err
		}
	}
	if wrong := validation.IsValidLabelValue(target); len(wrong) > 0 {
		return fmt.Errorf("invalid host name %q: %s", target, wrong[0])
	}
	to, err := a.connect(&flags.connectionFlags)
	if err != nil {
		return err
	}
	reports := map[string]bool{} // by host; the Lease of each host is checked once
	var errs []error
	for _, ref := range references {
		if err := a.adoptOne(ctx, to, flags, ref, target, reports); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (a *app) adoptOne(ctx context.Context, to *connection, flags *adoption, ref reference, target string, reports map[string]bool) error {
	object, err := to.get(ctx, ref)
	if err != nil {
		return err
	}
	holder := object.GetProcessStatus().HostName
	if holder == target && object.GetLabels()[v1alpha1.LabelHost] == target {
		_, _ = fmt.Fprintf(a.out, "%s already belongs to host %s\n", ref, target)
		return nil
	}
	gone := flags.gone && holder != "" && holder != target
	switch {
	case gone:
		if err := a.refuseReporting(ctx, to, flags.namespace, holder, reports); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
	case ref.kind.once && holder != "" && holder != target:
		return fmt.Errorf("%s runs on host %s, and runs cannot be moved: cancel it with berth stop %s and start a new run", ref, clean(holder), ref)
	}
	if err := relabel(ctx, to, object, target, gone); err != nil {
		return fmt.Errorf("adopt %s: %w", ref, err)
	}
	switch {
	case gone:
		_, _ = fmt.Fprintf(a.out, "%s now belongs to host %s; host %s was declared lost\n", ref, target, clean(holder))
	case holder == "" || holder == target:
		_, _ = fmt.Fprintf(a.out, "%s now belongs to host %s\n", ref, target)
	default:
		_, _ = fmt.Fprintf(a.out, "%s moves to host %s after host %s has stopped it\n", ref, target, clean(holder))
	}
	return nil
}

// relabel assigns an object to the host target. If gone is true, it also records that the former host is lost. It fails if the object has changed since it was
// read, because the host of the object may have changed too.
func relabel(ctx context.Context, to *connection, object process.Object, target string, gone bool) error {
	before := object.DeepCopyObject().(client.Object)
	object.SetLabels(labels.Merge(object.GetLabels(), labels.Set{v1alpha1.LabelHost: target}))
	if gone {
		object.SetAnnotations(labels.Merge(object.GetAnnotations(), labels.Set{v1alpha1.AnnotationLostHost: object.GetProcessStatus().HostName}))
	}
	return to.client.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
}

// refuseReporting returns an error if the host still renews its Lease. It caches the result in reports.
func (a *app) refuseReporting(ctx context.Context, to *connection, namespace, host string, reports map[string]bool) error {
	reporting, known := reports[host]
	if !known {
		a.say("checking for %s whether host %s still renews its Lease", leaseWatch, host)
		var err error
		if reporting, err = hosts.Renews(ctx, to.client, a.clock, namespace, host, leaseWatch); err != nil {
			return err
		}
		reports[host] = reporting
	}
	if reporting {
		return fmt.Errorf("host %s still renews its Lease: omit --host-is-gone, and that host hands over the object", host)
	}
	return nil
}
