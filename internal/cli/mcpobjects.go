// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/printable"
)

// listLimit is the maximum number of objects in the result of the tool list.
const listLimit = 200

// objectSummary describes an object in the results of tools.
type objectSummary struct {
	Name string `json:"name"` // KIND/NAME
	// Ready and Reason are the status and the reason of the condition Ready.
	Ready    string `json:"ready"`
	Reason   string `json:"reason"`
	Message  string `json:"message,omitempty"` // why the object is not ready
	Address  string `json:"address,omitempty"` // the URL, or the command that connects
	Restarts string `json:"restarts,omitempty"`
}

func summarize(r row) objectSummary {
	return objectSummary{Name: r.name, Ready: r.ready, Reason: r.reason, Message: r.message, Address: r.address, Restarts: r.restarts}
}

// objectDetail is the result of the tool get.
type objectDetail struct {
	objectSummary
	Notes    []string `json:"notes,omitempty"`    // messages of other conditions
	LastExit string   `json:"lastExit,omitempty"` // the exit of the previous process
	Output   []string `json:"output,omitempty"`   // the last lines, if they may show the cause
	Next     string   `json:"next,omitempty"`     // what the caller can do next
}

type listInput struct {
	Kind     string `json:"kind,omitempty" jsonschema:"devserver, instance, languageserver, plan, ..."`
	NotReady bool   `json:"notReady,omitempty" `
}

type listOutput struct {
	Objects []objectSummary `json:"objects"`
	Omitted int             `json:"omitted,omitempty"`
}

// named is the input of the tools that take one object.
type named struct {
	Name string `json:"name" jsonschema:"KIND/NAME"`
}

func (t *toolContext) list(ctx context.Context, _ *mcp.CallToolRequest, input listInput) (listOutput, error) {
	wanted := t.kinds()
	if input.Kind != "" {
		one := kindNamed(wanted, input.Kind)
		if one == nil {
			return listOutput{}, fmt.Errorf("unknown kind %q: use %s", input.Kind, kindList(wanted))
		}
		wanted = []*kind{one}
	}
	output := listOutput{Objects: []objectSummary{}}
	for _, kind := range wanted {
		rows, err := t.rowsOf(ctx, kind, input.Kind != "")
		if err != nil {
			return listOutput{}, err
		}
		sortRows(rows)
		for _, r := range rows {
			switch {
			case input.NotReady && r.ready == "True":
			case len(output.Objects) == listLimit:
				output.Omitted++
			default:
				output.Objects = append(output.Objects, summarize(r))
			}
		}
	}
	return output, nil
}

// kinds returns the kinds that the tools show.
func (t *toolContext) kinds() []*kind {
	if t.session == "" {
		return shownKinds()
	}
	var found []*kind
	for _, kind := range kinds {
		if !kind.once {
			found = append(found, kind)
		}
	}
	return found
}

func kindList(kinds []*kind) string {
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.singular)
	}
	return strings.Join(names, ", ")
}

// rowsOf returns the rows of the objects of a kind that the tools may see.
func (t *toolContext) rowsOf(ctx context.Context, kind *kind, everything bool) ([]row, error) {
	if t.session == "" {
		objects, err := listShown(ctx, t.to.client, kind, t.to.namespace, everything)
		return rowsOf(objects), err
	}
	objects, err := listAll(ctx, t.to.client, kind, t.to.namespace)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, object := range objects {
		if object.GetProcessSpec().Session == t.session {
			rows = append(rows, kind.show(object))
		}
	}
	return rows, nil
}

// find reads an object that has a process. It returns an error if the object does not exist or belongs to another session.
func (t *toolContext) find(ctx context.Context, name string) (reference, process.Object, error) {
	ref, err := parseReference(name)
	if err != nil {
		return ref, nil, err
	}
	object := ref.kind.object()
	err = t.to.client.Get(ctx, client.ObjectKey{Namespace: t.to.namespace, Name: ref.name}, object)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return ref, nil, fmt.Errorf("read %s: %w", ref, err)
	case err != nil, t.session != "" && object.GetProcessSpec().Session != t.session:
		return ref, nil, fmt.Errorf("%s does not exist in %s: call list to see all objects", ref, t.scope())
	}
	return ref, object, nil
}

// scope describes which objects the tools see, for messages.
func (t *toolContext) scope() string {
	if t.session != "" {
		return fmt.Sprintf("session %q of namespace %q", t.session, t.to.namespace)
	}
	return fmt.Sprintf("namespace %q", t.to.namespace)
}

func (t *toolContext) get(ctx context.Context, _ *mcp.CallToolRequest, input named) (objectDetail, error) {
	if ref, err := parseReferenceOf(input.Name, findShown); err == nil && ref.kind.object == nil && t.session == "" {
		object, err := t.to.getShown(ctx, ref)
		if err != nil {
			return objectDetail{}, err
		}
		r := object.row()
		return objectDetail{objectSummary: summarize(r), Notes: r.notes}, nil
	}
	ref, object, err := t.find(ctx, input.Name)
	if err != nil {
		return objectDetail{}, err
	}
	r := ref.kind.show(object)
	detail := objectDetail{objectSummary: summarize(r), Notes: r.notes, LastExit: describeExit(object.GetProcessStatus().LastExit), Next: nextStep(object, r, toolNames)}
	if r.explains {
		limited, cancel := context.WithTimeout(ctx, outputTimeout)
		defer cancel()
		detail.Output = printable.Tail(t.to.tail(limited, ref))
	}
	return detail, nil
}

// describeExit describes the exit of the previous process in one line.
func describeExit(exit *v1alpha1.ProcessExit) string {
	if exit == nil {
		return ""
	}
	words := []string{exit.Reason}
	switch {
	case exit.Signal != "":
		words = append(words, "signal "+exit.Signal)
	case exit.ExitCode != nil:
		words = append(words, fmt.Sprintf("exit code %d", *exit.ExitCode))
	}
	if exit.FinishTime != nil {
		words = append(words, "at "+exit.FinishTime.UTC().Format("2006-01-02T15:04:05Z"))
	}
	if exit.Message != "" {
		words = append(words, clean(exit.Message))
	}
	return strings.Join(words, ", ")
}
