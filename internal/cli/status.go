// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/controlplane"
)

// watchEvery is how often status -w polls. The API server answers from its watch cache, so polling is cheap.
const watchEvery = time.Second

func (a *app) statusCommand() *cobra.Command {
	flags := &connectionFlags{}
	var watch bool
	command := &cobra.Command{
		Use:   "status [KIND[/NAME]...]",
		Short: "Show processes, their addresses and why they are not ready",
		Long: "Status prints one line for each object and, below the table, why objects are not ready. For a single object, KIND/NAME, it adds the messages of\n" +
			"other conditions, and the last lines of output if they may contain the cause and you have permission to read the log. It warns if the manager\n" +
			"of an object has not renewed its Lease.",
		Example: "  # Show the objects of the namespace\n" +
			"  berth status\n\n" +
			"  # Show one object and, if it is not ready, why\n" +
			"  berth status devserver/web\n\n" +
			"  # Watch the dev servers of all namespaces\n" +
			"  berth status devservers -A -w",
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.status(command.Context(), flags, args, watch)
		},
	}
	flags.add(command)
	flags.addEndpoint(command)
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show the objects of all namespaces")
	command.Flags().BoolVarP(&watch, "watch", "w", false, "watch for changes and show them")
	return command
}

func (a *app) status(ctx context.Context, flags *connectionFlags, args []string, watch bool) error {
	wanted, err := parseWanted(args)
	if err != nil {
		return err
	}
	to, err := a.connect(flags)
	if err != nil {
		return err
	}
	to.endpoint = flags.endpoint
	if flags.allNamespaces {
		to.namespace = ""
		if named := namedOnly(wanted); named != "" {
			return fmt.Errorf("%s selects one object in one namespace: omit -A or the name", named)
		}
	}
	if !watch {
		return a.statusOnce(ctx, to, wanted)
	}
	return a.statusWatch(ctx, to, wanted)
}

// statusWatch shows changes until the context is done. It returns an error if the first read fails; afterwards it retries when the API server is temporarily
// unavailable.
func (a *app) statusWatch(ctx context.Context, to *connection, wanted []reference) error {
	board := newBoard(a.raw, to.namespace == "")
	tick := a.clock.NewTicker(watchEvery)
	defer tick.Stop()
	for failed := false; ; {
		rows, err := to.rows(ctx, wanted, true)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && len(board.said) == 0 && board.drawn == 0:
			return err // no read has succeeded yet
		case err != nil && !failed:
			failed = true
			a.say("%v; retrying", explain(err))
		case err == nil:
			failed = false
			board.show(rows, a.clock.Now())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
}

func (a *app) statusOnce(ctx context.Context, to *connection, wanted []reference) error {
	rows, err := to.rows(ctx, wanted, false)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		where := "namespace " + to.namespace
		if to.namespace == "" {
			where = "any namespace"
		}
		a.say("no objects in %s", where)
		return nil
	}
	sortRows(rows)
	shown := lines(rows, a.clock.Now(), to.namespace == "")
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

// parseWanted parses KIND or KIND/NAME arguments. No argument selects all kinds.
func parseWanted(args []string) ([]reference, error) {
	var wanted []reference
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

// rows reads the wanted objects. cheap permits slightly stale results, which the API server returns from its watch cache.
func (c *connection) rows(ctx context.Context, wanted []reference, cheap bool) ([]row, error) {
	var rows []row
	for _, ref := range wanted {
		if ref.name != "" {
			one, err := c.getShown(ctx, ref)
			if err != nil {
				return nil, err
			}
			rows = append(rows, one)
			continue
		}
		var opts []client.ListOption
		if cheap {
			opts = append(opts, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
		}
		some, err := listShown(ctx, c.client, ref.kind, c.namespace, ref.everything, opts...)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}
