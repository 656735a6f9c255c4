// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// Limits of how long a tool waits.
const (
	defaultToolWait = time.Minute
	longestToolWait = 10 * time.Minute
)

// waiting is the part of the input of the tools that can wait for the result of a change.
type waiting struct {
	Wait           bool `json:"wait,omitempty" jsonschema:"until complete"`
	TimeoutSeconds int  `json:"timeoutSeconds,omitempty"`
}

func (w waiting) timeout() time.Duration {
	if w.TimeoutSeconds <= 0 {
		return defaultToolWait
	}
	return min(time.Duration(w.TimeoutSeconds)*time.Second, longestToolWait)
}

type changeInput struct {
	named
	waiting
}

func (t *toolContext) addRunTools(box *toolbox) {
	addTool(box, "list", reads, "List objects with their state and address.", t.list)
	addTool(box, "get", reads, "Why an object is not ready, its last output, and what to do next.", t.get)
	addTool(box, "apply", idempotent, "Create or change a dev server, instance or language server from a few fields, or any Berth objects from a manifest.", t.apply)
	addTool(box, "start", idempotent, "Start a stopped object.", onObject(t, t.start))
	addTool(box, "stop", destroys, "Stop the process of an object, or cancel a strategyrun. The object remains.", onObject(t, t.stop))
	addTool(box, "restart", destroys, "Restart the process of an object, also if Berth no longer retries.", onObject(t, t.restart))
	addTool(box, "delete", destroys, "Stop the process of an object and delete the object.", onObject(t, t.remove))
}

func (t *toolContext) start(ctx context.Context, of *target, input changeInput) (objectSummary, error) {
	if of.ref.kind.once {
		return objectSummary{}, fmt.Errorf("%s is executed once, so it cannot be started again: create a new StrategyRun", of.ref)
	}
	if of.object.GetProcessSpec().State == v1alpha1.StateStopped {
		return t.change(ctx, of, map[string]any{"state": v1alpha1.StateRunning}, input.waiting)
	}
	return t.settle(ctx, of, input.waiting)
}

func (t *toolContext) restart(ctx context.Context, of *target, input changeInput) (objectSummary, error) {
	if err := refuseRuns("restart", of.ref); err != nil {
		return objectSummary{}, err
	}
	if of.object.GetProcessSpec().State == v1alpha1.StateStopped {
		return objectSummary{}, fmt.Errorf("%s is stopped, so it cannot be restarted: call start", of.ref)
	}
	return t.change(ctx, of, map[string]any{"restartToken": newToken(t.app.clock.Now())}, input.waiting)
}

func (t *toolContext) stop(ctx context.Context, of *target, input changeInput) (objectSummary, error) {
	run, once := of.object.(*v1alpha1.StrategyRun)
	switch {
	case once && run.Status.Outcome != "":
		return summarize(rowOf(run)), nil // it has already ended
	case once:
		return t.change(ctx, of, map[string]any{"state": v1alpha1.RunCancelled}, input.waiting)
	}
	return t.change(ctx, of, map[string]any{"state": v1alpha1.StateStopped}, input.waiting)
}

// change changes fields of the spec of an object. If that is wanted, it waits until the change has taken effect. It returns the summary of the object.
func (t *toolContext) change(ctx context.Context, of *target, fields map[string]any, wait waiting) (objectSummary, error) {
	var err error
	if of.object, err = t.to.change(ctx, of.ref, fields); err != nil {
		return objectSummary{}, err
	}
	return t.settle(ctx, of, wait)
}

// settle waits until the last change of an object has taken effect, if that is wanted, and returns the summary of the object.
func (t *toolContext) settle(ctx context.Context, of *target, wait waiting) (objectSummary, error) {
	if wait.Wait {
		if err := t.app.awaitChange(ctx, t.to, of.ref, of.object, awaitOptions{timeout: wait.timeout(), progress: reportProgress(ctx, of.call)}); err != nil {
			return objectSummary{}, fmt.Errorf("%w; call get for the last output and what to do next", err)
		}
	}
	object, err := t.to.get(ctx, of.ref)
	if err != nil {
		return objectSummary{}, err
	}
	return summarize(rowOf(object)), nil
}

// reportProgress returns a function that notifies the client of each change of the state of an object.
func reportProgress(ctx context.Context, call *mcp.CallToolRequest) func(process.Object) {
	progress := progressOf(ctx, call)
	return func(object process.Object) {
		r := rowOf(object)
		progress(strings.TrimSpace(r.name + " " + r.reason + " " + r.message))
	}
}

// progressOf returns a function that sends a progress notification with a text, if the client wants notifications and the text has changed.
func progressOf(ctx context.Context, call *mcp.CallToolRequest) func(text string) {
	token := call.Params.GetProgressToken()
	var last string
	var count float64
	return func(text string) {
		if token == nil || text == last {
			return
		}
		last = text
		count++
		// A client that does not receive the notification still receives the result.
		_ = call.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: count, Message: text})
	}
}

func (t *toolContext) remove(ctx context.Context, of *target, input changeInput) (resultOutput, error) {
	var wanted awaitOptions
	if input.Wait {
		wanted = awaitOptions{timeout: input.timeout(), progress: reportProgress(ctx, of.call)}
	}
	said, err := t.app.remove(ctx, t.to, of.ref, wanted)
	return resultOutput{said}, err
}
