// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	Waiting  string `json:"waiting,omitempty"` // since when and for what the object waits for a person
}

func summarize(r row) objectSummary {
	return objectSummary{Name: r.name, Ready: r.ready, Reason: r.reason, Message: r.message, Address: r.address, Restarts: r.restarts, Waiting: r.waiting}
}

// objectDetail is the result of the tool get.
type objectDetail struct {
	objectSummary
	Notes    []string `json:"notes,omitempty"`    // messages of other conditions
	LastExit string   `json:"lastExit,omitempty"` // the exit of the previous process
	Next     string   `json:"next,omitempty"`     // what the caller can do next
	// UntrustedOutput are the last lines of output, if they may show the cause.
	UntrustedOutput []string `json:"untrustedOutput,omitempty"`
}

type listInput struct {
	Kind     string `json:"kind,omitempty" jsonschema:"devserver, instance, languageserver, plan, ..."`
	NotReady bool   `json:"notReady,omitempty" `
	Waiting  bool   `json:"waiting,omitempty"`
}

type listOutput struct {
	Objects []objectSummary `json:"objects"`
	Omitted int             `json:"omitted,omitempty"`
}

// named is the input of the tools that take one object.
type named struct {
	Name string `json:"name" jsonschema:"KIND/NAME"`
}

func (n named) objectName() string { return n.Name }

// target is the object of a call of a tool.
type target struct {
	call   *mcp.CallToolRequest
	ref    reference
	object process.Object
}

// onObject returns the function of a tool that needs an object with a process. It reads the object before it calls do.
func onObject[In interface{ objectName() string }, Out any](
	t *toolContext, do func(context.Context, *target, In) (Out, error),
) func(context.Context, *mcp.CallToolRequest, In) (Out, error) {
	return func(ctx context.Context, call *mcp.CallToolRequest, input In) (output Out, err error) {
		ref, object, err := t.find(ctx, input.objectName())
		if err != nil {
			return output, err
		}
		return do(ctx, &target{call, ref, object}, input)
	}
}

// resultOutput is the output of the tools that return only a description of their effect.
type resultOutput struct {
	Result string `json:"result"`
}

func (t *toolContext) list(ctx context.Context, _ *mcp.CallToolRequest, input listInput) (listOutput, error) {
	wanted := t.kinds()
	if input.Kind != "" {
		one, err := findKind(wanted, input.Kind)
		if err != nil {
			return listOutput{}, err
		}
		wanted = []*kind{one}
	}
	output := listOutput{Objects: []objectSummary{}}
	for _, kind := range wanted {
		objects, err := listKind(ctx, t.to.client, kind, t.to.namespace, input.Kind != "")
		if err != nil {
			return listOutput{}, err
		}
		rows := rowsOf(slices.DeleteFunc(objects, func(object client.Object) bool { return !t.mayShow(object) }))
		sortRows(rows)
		for _, r := range rows {
			switch {
			case input.NotReady && r.ready == "True", input.Waiting && r.waiting == "":
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
		return shownKinds
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(kind *kind) bool { return kind.once })
}

// mayShow reports whether an object belongs to the session of the tools, if they are limited to one.
func (t *toolContext) mayShow(object client.Object) bool {
	if t.session == "" {
		return true
	}
	process, is := object.(process.Object)
	return is && process.GetProcessSpec().Session == t.session
}

// find reads an object that has a process. It returns an error if the object does not exist or belongs to another session.
func (t *toolContext) find(ctx context.Context, name string) (reference, process.Object, error) {
	ref, err := parseReference(name)
	if err != nil {
		return ref, nil, err
	}
	object, err := t.to.get(ctx, ref)
	switch {
	case errors.Is(err, errMissing), err == nil && !t.mayShow(object):
		return ref, nil, fmt.Errorf("%s does not exist in %s: call list to see all objects", ref, t.scope())
	case err != nil:
		return ref, nil, err
	}
	return ref.of(object), object, nil
}

// scope describes which objects the tools see, for messages.
func (t *toolContext) scope() string {
	if t.session != "" {
		return fmt.Sprintf("session %q of namespace %q", t.session, t.to.namespace)
	}
	return fmt.Sprintf("namespace %q", t.to.namespace)
}

func (t *toolContext) get(ctx context.Context, _ *mcp.CallToolRequest, input named) (objectDetail, error) {
	if ref, err := parseReferenceOf(shownKinds, input.Name); err == nil && !ref.kind.hasProcess() && t.session == "" {
		object, err := t.to.read(ctx, ref)
		if err != nil {
			return objectDetail{}, err
		}
		r := rowOf(object)
		return objectDetail{objectSummary: summarize(r), Notes: r.notes}, nil
	}
	ref, object, err := t.find(ctx, input.Name)
	if err != nil {
		return objectDetail{}, err
	}
	r := rowOf(object)
	detail := objectDetail{objectSummary: summarize(r), Notes: r.notes, LastExit: describeExit(object.GetProcessStatus().LastExit), Next: nextStep(object, r, toolNames)}
	if r.explains {
		limited, cancel := context.WithTimeout(ctx, outputTimeout)
		defer cancel()
		detail.UntrustedOutput = printable.Tail(t.app.tail(limited, t.to, ref))
	}
	return detail, nil
}
