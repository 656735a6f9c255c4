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
	TimeoutSeconds int  `json:"timeoutSeconds,omitempty" jsonschema:"default 60"`
}

func (w waiting) timeout() time.Duration {
	if w.TimeoutSeconds <= 0 {
		return defaultToolWait
	}
	return min(time.Duration(w.TimeoutSeconds)*time.Second, longestToolWait)
}

type changeInput struct {
	Name string `json:"name" jsonschema:"KIND/NAME"`
	waiting
}

func (t *toolContext) addRunTools(box *toolbox) {
	addTool(box, "list", reads, "List objects with their state and address.", t.list)
	addTool(box, "get", reads, "Why an object is not ready, its last output, and what to do next.", t.get)
	addTool(box, "apply", idempotent, "Create or change a dev server, instance or language server from a few fields, or any Berth objects from a manifest.", t.apply)
	addTool(box, "start", idempotent, "Start a stopped object.", t.start)
	addTool(box, "stop", destroys, "Stop the process of an object, or cancel a strategyrun. The object remains.", t.stop)
	addTool(box, "restart", destroys, "Restart the process of an object, also if Berth no longer retries.", t.restart)
	addTool(box, "delete", destroys, "Stop the process of an object and delete the object.", t.remove)
}

func (t *toolContext) start(ctx context.Context, call *mcp.CallToolRequest, input changeInput) (objectSummary, error) {
	ref, object, err := t.find(ctx, input.Name)
	if err != nil {
		return objectSummary{}, err
	}
	if ref.kind.once {
		return objectSummary{}, fmt.Errorf("%s is executed once, so it cannot be started again: create a new StrategyRun", ref)
	}
	if object.GetProcessSpec().State == v1alpha1.StateStopped {
		if object, err = t.to.change(ctx, ref, map[string]any{"state": v1alpha1.StateRunning}); err != nil {
			return objectSummary{}, err
		}
	}
	return t.settle(ctx, call, ref, object, input.waiting)
}

func (t *toolContext) restart(ctx context.Context, call *mcp.CallToolRequest, input changeInput) (objectSummary, error) {
	ref, object, err := t.find(ctx, input.Name)
	if err != nil {
		return objectSummary{}, err
	}
	if err := refuseRuns([]reference{ref}, "restart"); err != nil {
		return objectSummary{}, err
	}
	if object.GetProcessSpec().State == v1alpha1.StateStopped {
		return objectSummary{}, fmt.Errorf("%s is stopped, so it cannot be restarted: call start", ref)
	}
	token := newToken(t.app.clock.Now())
	if object, err = t.to.change(ctx, ref, map[string]any{"restartToken": token}); err != nil {
		return objectSummary{}, err
	}
	return t.settle(ctx, call, ref, object, input.waiting)
}

// settle waits for an object to be ready, if that is wanted, and returns its summary.
func (t *toolContext) settle(ctx context.Context, call *mcp.CallToolRequest, ref reference, object process.Object, wait waiting) (objectSummary, error) {
	if wait.Wait {
		wanted := awaitOptions{
			generation: object.GetGeneration(), token: object.GetProcessSpec().RestartToken, timeout: wait.timeout(), progress: reportProgress(ctx, call, ref.kind),
		}
		if err := t.app.awaitReady(ctx, t.to, ref, wanted); err != nil {
			return objectSummary{}, fmt.Errorf("%w; call get for the last output and what to do next", err)
		}
	}
	return t.summary(ctx, ref)
}

func (t *toolContext) summary(ctx context.Context, ref reference) (objectSummary, error) {
	object, err := t.to.get(ctx, ref)
	if err != nil {
		return objectSummary{}, err
	}
	return summarize(ref.kind.show(object)), nil
}

// reportProgress returns a function that notifies the client of each change of the state of an object.
func reportProgress(ctx context.Context, call *mcp.CallToolRequest, kind *kind) func(process.Object) {
	progress := progressOf(ctx, call)
	return func(object process.Object) {
		r := kind.show(object)
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

func (t *toolContext) stop(ctx context.Context, call *mcp.CallToolRequest, input changeInput) (objectSummary, error) {
	ref, object, err := t.find(ctx, input.Name)
	if err != nil {
		return objectSummary{}, err
	}
	run, once := object.(*v1alpha1.StrategyRun)
	switch {
	case once && run.Status.Outcome != "":
		return summarize(ref.kind.show(run)), nil // it has already ended
	case once:
		object, err = t.to.change(ctx, ref, map[string]any{"state": v1alpha1.RunCancelled})
	default:
		object, err = t.to.change(ctx, ref, map[string]any{"state": v1alpha1.StateStopped})
	}
	if err != nil {
		return objectSummary{}, err
	}
	if input.Wait {
		wanted := awaitOptions{generation: object.GetGeneration(), timeout: input.timeout(), progress: reportProgress(ctx, call, ref.kind)}
		if err := t.app.awaitStopped(ctx, t.to, ref, wanted); err != nil {
			return objectSummary{}, err
		}
	}
	return t.summary(ctx, ref)
}

type deleteOutput struct {
	Result string `json:"result"`
}

func (t *toolContext) remove(ctx context.Context, call *mcp.CallToolRequest, input changeInput) (deleteOutput, error) {
	ref, _, err := t.find(ctx, input.Name)
	if err != nil {
		return deleteOutput{}, err
	}
	var wanted awaitOptions
	if input.Wait {
		wanted = awaitOptions{timeout: input.timeout(), progress: reportProgress(ctx, call, ref.kind)}
	}
	said, err := t.app.remove(ctx, t.to, ref, wanted)
	return deleteOutput{Result: said}, err
}
