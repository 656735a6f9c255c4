// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// actions are the instructions in which nextStep expresses what to do, such as "call start".
type actions struct{ gone, wait, start, restart, logs, apply string }

// toolNames are the instructions for users of the MCP server.
var toolNames = actions{
	gone: "list no longer returns it", wait: "call get again, or call start or restart with wait", start: "call start",
	restart: "call restart", logs: "with logs", apply: "with apply",
}

// commandNames returns the instructions for users of the command line.
func commandNames(ref reference) actions {
	name := ref.String()
	return actions{
		gone: "berth wait " + name + " --for deleted returns", wait: "run berth wait " + name, start: "run berth start " + name,
		restart: "run berth restart " + name, logs: "with berth logs " + name, apply: "with berth apply",
	}
}

// nextStep returns what a person or an agent can do about the state of an object; empty if nothing is necessary.
func nextStep(object process.Object, r row, do actions) string {
	stalled := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionStalled)
	switch {
	case object.GetDeletionTimestamp() != nil:
		return "The object is being deleted: wait until " + do.gone + "."
	case object.GetProcessSpec().State == v1alpha1.StateStopped:
		return "The object is stopped: " + do.start + " to run it."
	case r.ready == "True":
		return ""
	case stalled != nil && stalled.Status == metav1.ConditionTrue && r.explains:
		return "Berth does not retry: find the cause in the output or " + do.logs + ", correct it, then " + do.restart + "."
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		return "Berth cannot proceed: correct the cause in the message, " + do.apply + " if it is in the spec, then " + do.restart + "."
	case r.explains && object.GetProcessStatus().LastExit != nil:
		return "The previous process failed and Berth retries: if that does not help, find the cause in the output or " + do.logs + "."
	default:
		return "Berth is working on it: " + do.wait + "."
	}
}
