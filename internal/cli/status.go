// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/controlplane"
)

// watchEvery is how often status -w polls. The API server answers from its watch cache, so polling is cheap.
const watchEvery = time.Second

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
		ValidArgsFunction: a.completeShown(&flags.connectionFlags),
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
	flags.add(command)
	flags.addEndpoint(command)
	flags.format.add(command)
	flags.labels.addLabels(command)
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show the objects of all namespaces")
	command.Flags().BoolVarP(&flags.watch, "watch", "w", false, "watch for changes and show them")
	return command
}

// statusFlags are the flags of berth status.
type statusFlags struct {
	connectionFlags
	labels selection
	format outputFormat
	watch  bool
}

func (a *app) status(ctx context.Context, flags *statusFlags, args []string, printer printers.ResourcePrinter) error {
	wanted, err := parseWanted(args)
	if err != nil {
		return err
	}
	opts, err := flags.labels.option()
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
	if err != nil {
		return err
	}
	if printer == nil {
		return a.statusOnce(ctx, to, wanted, rowsOf(found), flags.format.text == "wide")
	}
	slices.SortStableFunc(found, func(a, b shownObject) int {
		return cmp.Or(cmp.Compare(a.object.GetNamespace(), b.object.GetNamespace()), cmp.Compare(a.kind.singular, b.kind.singular), cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	return printObjects(printer, a.out, objectsOf(found), len(wanted) == 1 && wanted[0].name != "")
}

// statusWatch shows changes until the context is done. It returns an error if the first read fails; afterwards it retries when the API server is temporarily
// unavailable.
func (a *app) statusWatch(ctx context.Context, to *connection, wanted []reference, opts []client.ListOption) error {
	board := newBoard(a.raw, to.namespace == "")
	// Slightly stale results are sufficient: the API server returns them from its watch cache.
	opts = append(opts, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	var found []shownObject
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
		for _, note := range rows[0].notes {
			shown = append(shown, "  "+note)
		}
		if rows[0].explains {
			shown = append(shown, a.lastOutput(ctx, to, wanted[0])...)
		}
	}
	for _, line := range shown {
		if _, err := fmt.Fprintln(a.out, line); err != nil {
			return err
		}
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

// parseWanted parses KIND or KIND/NAME arguments, or KIND NAME... as in kubectl. No argument selects all kinds.
func parseWanted(args []string) ([]reference, error) {
	var wanted []reference
	if len(args) > 1 && !strings.Contains(args[1], "/") && kindNamed(shownKinds(), args[1]) == nil {
		kind, err := findShown(args[0])
		if err != nil {
			return nil, err
		}
		for _, name := range args[1:] {
			wanted = append(wanted, reference{kind: kind, name: name})
		}
		return wanted, nil
	}
	for _, word := range args {
		if strings.Contains(word, "/") {
			parsed, err := parseReferenceOf(word, findShown)
			if err != nil {
				return nil, err
			}
			wanted = append(wanted, parsed)
			continue
		}
		kind, err := findShown(word)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, reference{kind: kind, everything: true})
	}
	if len(args) == 0 {
		for _, kind := range shownKinds() {
			wanted = append(wanted, reference{kind: kind})
		}
	}
	return wanted, nil
}

func namedOnly(wanted []reference) string {
	for _, ref := range wanted {
		if ref.name != "" {
			return ref.String()
		}
	}
	return ""
}

// objects reads the wanted objects. The options apply to lists.
func (c *connection) objects(ctx context.Context, wanted []reference, opts ...client.ListOption) ([]shownObject, error) {
	var found []shownObject
	for _, ref := range wanted {
		if ref.name != "" {
			one, err := c.getShown(ctx, ref)
			if err != nil {
				return nil, err
			}
			found = append(found, one)
			continue
		}
		some, err := listShown(ctx, c.client, ref.kind, c.namespace, ref.everything, opts...)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}
