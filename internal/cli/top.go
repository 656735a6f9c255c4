// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// topInterval is the time between the two measurements from which berth top calculates the use of the CPU.
	topInterval = time.Second
	// topParallel is the number of objects that are measured at the same time.
	topParallel = 8
)

func (a *app) topCommand() *cobra.Command {
	objects := &selection{}
	command := &cobra.Command{
		Use:   "top [KIND[/NAME]...]",
		Short: "Show the CPU, the memory and the number of processes of objects",
		Long: "Top measures for one second and prints, for each object with a process on a machine, the use of the CPU (1000m is one core), the resident memory and the\n" +
			"number of processes, the largest memory first. For a process in a Pod, use kubectl top pod.",
		Example: "  # All objects of the namespace\n" +
			"  berth top\n\n" +
			"  # Two objects\n" +
			"  berth top devserver/web languageserver/gopls",
		ValidArgsFunction: a.completeReferences(&objects.connectionFlags, kinds),
		RunE: func(command *cobra.Command, args []string) error {
			return a.top(command.Context(), args, objects)
		},
	}
	objects.connectionFlags.add(command)
	objects.addEndpoint(command)
	objects.addLabels(command)
	return command
}

func (a *app) top(ctx context.Context, args []string, objects *selection) error {
	wanted, err := parseWanted(args)
	if err != nil {
		return err
	}
	opts, err := objects.option()
	if err != nil {
		return err
	}
	to, err := a.connect(&objects.connectionFlags)
	if err != nil {
		return err
	}
	found, err := to.objects(ctx, slices.DeleteFunc(wanted, func(ref reference) bool { return !ref.kind.hasProcess() }), opts...)
	if err != nil {
		return err
	}
	var references []reference
	managers := managers{to: to}
	defer managers.close()
	for _, object := range found {
		if object := object.(process.Object); object.GetProcessStatus().Process != nil && !inPod(object) {
			ref, _ := parseReference(nameOf(object)) // the name of an object is valid
			references = append(references, ref)
			managers.open(ctx, object)
		}
	}
	if len(references) == 0 {
		a.say("no object in namespace %s has a process on a machine", to.namespace)
		return nil
	}
	before, _ := measureAll(ctx, &managers, references)
	begun := a.clock.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.clock.After(topInterval):
	}
	now, err := measureAll(ctx, &managers, references)
	if printed := a.print(usageTable(references, before, now, a.clock.Since(begun))); printed != nil {
		return printed
	}
	return err
}

// usage is what the processes of an object use.
type usage struct {
	memory    int64
	cpu       time.Duration
	processes int
	known     bool
}

// managers are the connections for several objects, one for each host.
type managers struct {
	to     *connection
	byHost map[string]opened
	of     []opened // for each object, in the order of open
}

// opened is a connection, or the reason why there is none.
type opened struct {
	*endpoint.Client
	err error
}

// open connects to the manager of an object.
func (m *managers) open(ctx context.Context, object process.Object) {
	host := endpoint.HostOf(object)
	found, known := m.byHost[host]
	if !known {
		found.Client, found.err = m.to.manager(ctx, object)
		if m.byHost == nil {
			m.byHost = map[string]opened{}
		}
		m.byHost[host] = found
	}
	m.of = append(m.of, found)
}

func (m *managers) close() {
	for _, found := range m.byHost {
		if found.err == nil {
			found.Close()
		}
	}
}

// processes returns the processes of the object that was the ith one to be opened.
func (m *managers) processes(ctx context.Context, i int, ref reference) ([]runtime.Member, error) {
	if m.of[i].err != nil {
		return nil, m.of[i].err
	}
	return m.of[i].Processes(ctx, m.to.endpointObject(ref))
}

// measureAll measures objects. It returns the results in the order of the references, and all errors joined.
func measureAll(ctx context.Context, managers *managers, references []reference) ([]usage, error) {
	results, errs := make([]usage, len(references)), make([]error, len(references))
	var group errgroup.Group
	group.SetLimit(topParallel)
	for i, ref := range references {
		group.Go(func() error {
			members, err := managers.processes(ctx, i, ref)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", ref, err)
				return nil
			}
			results[i] = sum(members)
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	return results, errors.Join(errs...)
}

func sum(members []runtime.Member) usage {
	total := usage{processes: len(members), known: true}
	for _, member := range members {
		total.memory, total.cpu = total.memory+member.Memory, total.cpu+member.CPU
	}
	return total
}

// usageTable prints the use of the CPU between two measurements, and the memory and the processes of the second one.
func usageTable(references []reference, before, now []usage, between time.Duration) []string {
	order := make([]int, len(references))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(now[b].memory/1024 - now[a].memory/1024) })
	cells := [][]string{{"NAME", "CPU", "MEMORY", "PROCESSES"}}
	for _, i := range order {
		line := []string{references[i].String(), "<unknown>", "<unknown>", "<unknown>"}
		if now[i].known {
			line[2], line[3] = resource.NewQuantity(now[i].memory>>20<<20, resource.BinarySI).String(), strconv.Itoa(now[i].processes)
		}
		if now[i].known && before[i].known && between > 0 {
			// A process that has exited meanwhile lowers the sum.
			line[1] = strconv.FormatInt(int64(max(0, now[i].cpu-before[i].cpu)*1000/between), 10) + "m"
		}
		cells = append(cells, line)
	}
	return align(cells)
}
