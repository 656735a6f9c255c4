// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// unavailableRetry is how soon to query a runtime again after it did not respond.
const unavailableRetry = 5 * time.Second

// prepare determines how to start the next incarnation, or why it cannot be started.
func (r *Reconciler) prepare(ctx context.Context, v *scope) error {
	v.hash, v.resumeHash = recordedHashes(v.object.GetProcessStatus())
	if v.want == lifecycle.DesiredStopped || v.want == lifecycle.DesiredDeleted || v.want == lifecycle.DesiredMoved {
		return nil
	}
	var variables []variable
	blocked, err := r.notPermitted(ctx, v)
	if err != nil {
		return err
	}
	if v.unavailable != "" {
		if blocked == nil {
			message := conditions.Sentence(v.unavailable) + " Berth checks this again."
			blocked = &lifecycle.Blocked{Reason: v1alpha1.ReasonRuntimeUnavailable, Message: message, Retry: unavailableRetry}
		}
		v.start.Blocked = blocked
		v.hosted = lifecycle.Hosted{} // the object has not started here, so the status names no host, and another host may take the object
		return nil
	}
	if blocked == nil { // a blocked start does not need the values of the environment variables
		if variables, blocked, err = r.resolve(ctx, v); err != nil {
			return err
		}
	}
	v.start = StartSpec{Process: r.process(v), Blocked: blocked, Refused: r.stateCache.lastError(v.object.GetUID()) != ""}
	v.start.Found = v.knows(v.object.GetProcessStatus().Incarnation)
	v.start.Process.Env = expandEnvironment(variables, nil).list
	if err := r.Kind.Prepare(ctx, v.object, v.current, &v.start); err != nil {
		return fmt.Errorf("prepare the start: %w", err)
	}
	v.start.RecordFirst = v.start.RecordFirst || v.reserves && !equality.Semantic.DeepEqual(v.base, v.object)
	if v.hash, v.resumeHash, err = specHash(v.spec(), v.start.Fingerprint); err != nil || v.start.Blocked != nil {
		return err
	}
	v.preparePrograms(variables)
	if v.start.Blocked == nil {
		v.start.Blocked = v.start.Held
	}
	return nil
}

// notPermitted returns why this manager or its namespace permits no process of the runtime; nil if both do.
func (r *Reconciler) notPermitted(ctx context.Context, v *scope) (*lifecycle.Blocked, error) {
	if blocked := disabled(v.runtime); blocked != nil {
		return blocked, nil
	}
	return r.forbidden(ctx, v.object)
}

// process returns the process that the spec describes, before variables are expanded. Its incarnation number is that of the running incarnation, or else the
// next number.
func (r *Reconciler) process(v *scope) runtime.Process {
	template := v.spec().Process
	next := v.object.GetProcessStatus().Incarnation + 1
	if v.current != nil {
		next = v.current.Number
	}
	return runtime.Process{
		UID:         v.object.GetUID(),
		Incarnation: next,
		Name:        name(r.Kind, v.object),
		Command:     append([]string(nil), template.Command...),
		Dir:         template.WorkingDir,
		StopSignal:  cmp.Or(template.Stop.Signal, defaultStopSignal),
		Grace:       Seconds(template.Stop.GracePeriodSeconds, defaultGrace),
	}
}

// recordedHashes returns the fingerprints with which the current incarnation was started.
func recordedHashes(status *v1alpha1.ProcessStatus) (hash, resumeHash string) {
	if status.Resume != nil {
		resumeHash = status.Resume.CommandHash
	}
	return status.SpecHash, resumeHash
}

// specHash returns the fingerprint of the parts of the spec from which an incarnation is started, and that of the resumeCommand, which is empty if there is none.
// They are separate, because an incarnation that was started with command does not depend on resumeCommand. The fingerprint does not depend on the values of
// Secrets, only on the references to them. It omits the stop policy, because a change of that policy requires no restart.
func specHash(spec *v1alpha1.ProcessSpec, words []string) (hash, resumeHash string, err error) {
	text, err := json.Marshal(struct {
		Command []string
		Dir     string
		Env     []v1alpha1.EnvVar
		EnvFrom []v1alpha1.EnvFromSource `json:",omitempty"`
		Words   []string
	}{spec.Process.Command, spec.Process.WorkingDir, spec.Process.Env, spec.Process.EnvFrom, words})
	if err != nil {
		return "", "", fmt.Errorf("fingerprint the spec: %w", err)
	}
	if len(spec.Process.ResumeCommand) > 0 {
		resume, err := json.Marshal(spec.Process.ResumeCommand)
		if err != nil {
			return "", "", fmt.Errorf("fingerprint the resumeCommand: %w", err)
		}
		resumeHash = fingerprint(resume)
	}
	return fingerprint(text), resumeHash, nil
}

func fingerprint(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
