// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/hosts"
)

// watchEvery is how often status -w polls. The API server answers from its watch cache, so polling is cheap.
const watchEvery = time.Second

// fromCache makes the API server return results from its watch cache, for commands that poll and can use slightly stale results.
var fromCache = &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}

func (a *app) statusCommand() *cobra.Command {
	flags := &statusFlags{format: outputFormat{wide: true}}
	command := &cobra.Command{
		Use:     "status [KIND[/NAME]...]",
		Aliases: []string{"get"},
		Short:   "Show processes, their addresses and why they are not ready",
		Long: "Status prints one line for each object and, below the table, why objects are not ready. For a single object, KIND/NAME, it adds the messages of\n" +
			"other conditions, and the last lines of output if they may contain the cause and you have permission to read the log. It warns if the manager\n" +
			"of an object has not renewed its Lease.",
		Example: "  # Show the objects of the namespace\n" +
			"  berth status\n\n" +
			"  # Show one object and, if it is not ready, why\n" +
			"  berth status devserver/web\n\n" +
			"  # Watch the dev servers of all namespaces\n" +
			"  berth status devservers -A -w\n\n" +
			"  # Print the URL of a dev server\n" +
			"  berth status devserver/web -o jsonpath='{.status.url}'",
		ValidArgsFunction: a.completeReferences(&flags.connectionFlags, shownKinds),
		RunE: func(command *cobra.Command, args []string) error {
			printer, err := flags.format.printer(command)
			if err != nil {
				return err
			}
			if printer != nil && flags.watch {
				return &usageError{errors.New("-w shows a table: to watch objects in another format, run kubectl get -w"), command.UsageString()}
			}
			return a.status(command.Context(), flags, args, printer)
		},
	}
	flags.connectionFlags.add(command)
	flags.addEndpoint(command)
	flags.format.add(command)
	flags.addLabels(command)
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show the objects of all namespaces")
	command.Flags().BoolVarP(&flags.watch, "watch", "w", false, "watch for changes and show them")
	return command
}

// statusFlags are the flags of berth status.
type statusFlags struct {
	selection
	format outputFormat
	watch  bool
}

func (a *app) status(ctx context.Context, flags *statusFlags, args []string, printer printers.ResourcePrinter) error {
	wanted, err := parseWanted(args)
	if err != nil {
		return err
	}
	opts, err := flags.option()
	if err != nil {
		return err
	}
	if named := namedOnly(wanted); named != "" && opts != nil {
		return fmt.Errorf("%s selects one object: omit -l or the name", named)
	}
	to, err := a.connect(&flags.connectionFlags)
	if err != nil {
		return err
	}
	if flags.allNamespaces {
		to.namespace = ""
		if named := namedOnly(wanted); named != "" {
			return fmt.Errorf("%s selects one object in one namespace: omit -A or the name", named)
		}
	}
	if flags.watch {
		return a.statusWatch(ctx, to, wanted, opts)
	}
	found, err := to.objects(ctx, wanted, opts...)
	for _, omitted := range to.omitted.take() {
		a.say("warning: %v", omitted)
	}
	if err != nil {
		return err
	}
	if printer == nil {
		return a.statusOnce(ctx, to, wanted, rowsOf(found), flags.format.text == "wide")
	}
	slices.SortStableFunc(found, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(nameOf(a), nameOf(b)))
	})
	return printObjects(printer, a.out, found, len(wanted) == 1 && wanted[0].name != "")
}

// statusWatch shows changes until the context is done. It returns an error if the first read fails; afterwards it retries when the API server is temporarily
// unavailable.
func (a *app) statusWatch(ctx context.Context, to *connection, wanted []reference, opts []client.ListOption) error {
	board := newBoard(a.raw, to.namespace == "")
	opts = append(opts, fromCache)
	var found []client.Object
	read := func() (err error) {
		found, err = to.objects(ctx, wanted, opts...)
		return err
	}
	return a.follow(ctx, watchEvery, nil, read, func() (bool, error) {
		board.show(rowsOf(found), a.clock.Now())
		return false, nil
	})
}

func (a *app) statusOnce(ctx context.Context, to *connection, wanted []reference, rows []row, wide bool) error {
	if len(rows) == 0 {
		where := "namespace " + to.namespace
		if to.namespace == "" {
			where = "any namespace"
		}
		a.say("no objects in %s", where)
		return nil
	}
	sortRows(rows)
	shown := lines(rows, a.clock.Now(), tableColumns{namespace: to.namespace == "", wide: wide})
	if len(wanted) == 1 && wanted[0].name != "" {
		shown = append(shown, indented(rows[0].notes)...)
		if rows[0].explains {
			shown = append(shown, indented(a.lastOutput(ctx, to, wanted[0]))...)
		}
	}
	if err := a.print(shown); err != nil {
		return err
	}
	a.warnSilent(ctx, to, rows...)
	a.sayWhereUpRuns(to)
	return nil
}

// sayWhereUpRuns names the process and the directory of berth up if the objects are on the API server of this user's berth up.
func (a *app) sayWhereUpRuns(to *connection) {
	state := defaultStateDir()
	own, err := clientcmd.BuildConfigFromFlags("", controlplane.KubeconfigPath(state))
	if err != nil || to.config == nil || own.Host != to.config.Host {
		return // another API server
	}
	if owner, err := controlplane.FindOwner(state); err == nil && owner != nil {
		a.say("berth up: process %d, state directory %s", owner.PID, state)
	}
}

func namedOnly(wanted []reference) string {
	for _, ref := range wanted {
		if ref.name != "" {
			return ref.String()
		}
	}
	return ""
}

const (
	// silentAfter is the age of a Lease at which a command warns: two renewals are then missing. It is only a warning, because the clocks of two machines
	// may differ.
	silentAfter = 5 * hosts.Interval / 2
	// leaseTimeout bounds how long a command waits for the Leases.
	leaseTimeout = 3 * time.Second
)

// warnSilent warns if the managers that act on the objects have not renewed their Leases. It prints nothing if there is no Lease or the user may not read
// Leases.
func (a *app) warnSilent(ctx context.Context, to *connection, rows ...row) {
	if len(rows) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	renewed, err := hosts.Renewed(ctx, to.client, to.managerNamespace())
	if err != nil || len(renewed) == 0 {
		return
	}
	newest := slices.MaxFunc(slices.Collect(maps.Values(renewed)), time.Time.Compare)
	var owners []string
	for _, r := range rows {
		owners = append(owners, r.host)
	}
	slices.Sort(owners)
	for _, host := range slices.Compact(owners) {
		at, known := renewed[host]
		subject := "the manager of host " + host
		if host == "" { // any manager may serve an object without a host
			at, known, subject = newest, true, "every manager"
		}
		if silent := a.clock.Since(at); known && silent > silentAfter {
			a.say("warning: %s has been silent for %s, so the status may be out of date and requests are delayed: is it suspended, or did it exit? "+
				"Find the process of berth up or berth manager there, and continue it or start it again", subject, duration.HumanDuration(silent))
		}
	}
}
