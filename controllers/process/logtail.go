// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
)

// logTailRead is how many bytes of the end of a log are read. It is more than printable.MaxTail because stack frames and escape sequences are omitted.
const logTailRead = 16 << 10

// readLogTail adds the end of the output to the exit of an incarnation that failed, unless the status already contains this exit. An exit without output is not an
// error, because the tail only helps people.
func (v *scope) readLogTail(ctx context.Context, found []facts.Incarnation) {
	for i := range found {
		if exit := found[i].Exit; exit != nil && v.needsTail(found[i].Number, *exit) {
			withTail := *exit // the backend may share it
			withTail.LogTail = v.logEnd(ctx)
			found[i].Exit = &withTail
		}
		if before := found[i].Before; before != nil && v.needsTail(before.Number, before.Exit) {
			withTail := *before
			withTail.Exit.LogTail = v.logEnd(ctx)
			found[i].Before = &withTail
		}
	}
}

// needsTail reports whether an exit is a failure that the status does not contain yet, and whose output the status may contain.
func (v *scope) needsTail(incarnation int64, exit facts.Exit) bool {
	status := v.object.GetProcessStatus()
	recorded := incarnation < status.Incarnation || status.LastExit != nil && status.LastExit.Incarnation >= incarnation
	return !recorded && lifecycle.Failed(exit) && tailPermitted(v.spec().Process, v.traits.Template)
}

// logEnd returns the end of the output of the object. It is empty if the backend keeps no output, or if the output cannot be read.
func (v *scope) logEnd(ctx context.Context) string {
	logs := v.runtime.Capabilities().Logs
	if logs == nil {
		return ""
	}
	log, err := logs.OpenLog(ctx, v.object.GetUID())
	if err != nil {
		return ""
	}
	defer func() { _ = log.Close() }()
	first, end, err := log.Bounds()
	if err != nil {
		return ""
	}
	text := make([]byte, min(end-first, logTailRead))
	start := end - int64(len(text))
	n, err := log.ReadAt(text, start)
	if n < len(text) {
		ctrl.LoggerFrom(ctx).V(1).Info("Cannot read the end of the output", "cause", fmt.Sprint(err))
	}
	text = text[:n]
	begins := start%runtime.IncarnationLog == 0 // of the first byte of an object or, in a Pod, of an incarnation
	if _, whole, cut := bytes.Cut(text, []byte("\n")); cut && !begins && len(whole) > 0 {
		text = whole // the first line may be incomplete, also within an escape sequence
	}
	return strings.Join(printable.Tail(text), "\n")
}

// tailPermitted reports whether the status may contain output of the program. By default it may not if the program has a value of a Secret in its environment.
func tailPermitted(process v1alpha1.ProcessTemplate, template *apiruntime.RawExtension) bool {
	if process.LogTail != "" {
		return process.LogTail == v1alpha1.LogTailOnFailure
	}
	return !takesSecrets(template) && !slices.ContainsFunc(process.Env, func(variable v1alpha1.EnvVar) bool {
		return variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil
	}) && !slices.ContainsFunc(process.EnvFrom, func(source v1alpha1.EnvFromSource) bool { return source.SecretRef != nil })
}

// takesSecrets reports whether the template of a Pod sets a variable of a container to a value of a Secret. A template that cannot be decoded starts nothing, and
// counts as one that does.
func takesSecrets(template *apiruntime.RawExtension) bool {
	if template == nil || len(template.Raw) == 0 {
		return false
	}
	var pod struct {
		Spec struct {
			Containers []struct {
				Env     []struct{ ValueFrom struct{ SecretKeyRef any } }
				EnvFrom []struct{ SecretRef any }
			}
		}
	}
	if json.Unmarshal(template.Raw, &pod) != nil {
		return true
	}
	for _, container := range pod.Spec.Containers {
		for _, variable := range container.Env {
			if variable.ValueFrom.SecretKeyRef != nil {
				return true
			}
		}
		for _, source := range container.EnvFrom {
			if source.SecretRef != nil {
				return true
			}
		}
	}
	return false
}
