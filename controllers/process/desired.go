// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// The constants default* are the defaults of the API, for objects that were stored before the API had them. Durations are in seconds.
const (
	defaultStopSignal       = "SIGTERM" // a kind may set another default in Prepare
	defaultGrace            = 10
	defaultBackoffInitial   = 1
	defaultBackoffMax       = 60
	defaultBackoffReset     = 60
	defaultBreakerThreshold = 5
	defaultBreakerWindow    = 180
	defaultBreakerCoolDown  = 600
)

// CommandLine returns the berth command that applies a verb, such as logs, to the object.
func CommandLine(verb string, kind Kind, object Object) string {
	command := "berth " + verb + " " + strings.TrimSuffix(kind.Resource(), "s") + "/" + object.GetName()
	if namespace := object.GetNamespace(); namespace != metav1.NamespaceDefault {
		command += " -n " + namespace
	}
	return command
}

// desired returns what the spec requests, with defaults for unset fields.
func (v *scope) desired(kind Kind) lifecycle.Desired {
	spec := v.spec()
	restart := CommandLine("restart", kind, v.object)
	if _, resolves := kind.(SpecResolver); resolves {
		restart = "" // an object whose process spec comes from another object has no restartToken
	}
	return lifecycle.Desired{
		UID:           v.object.GetUID(),
		Generation:    v.object.GetGeneration(),
		State:         v.want,
		Hosted:        v.hosted,
		SpecHash:      v.hash,
		RestartToken:  spec.RestartToken,
		ResetToken:    spec.ResetToken,
		SessionID:     v.traits.SessionID,
		ResumeHash:    v.resumeHash,
		Logs:          CommandLine("logs", kind, v.object),
		Restart:       restart,
		RestartPolicy: cmp.Or(spec.RestartPolicy, v1alpha1.RestartAlways),
		UpdatePolicy:  cmp.Or(spec.UpdatePolicy, v1alpha1.UpdateRecreate),
		Grace:         Seconds(spec.Process.Stop.GracePeriodSeconds, defaultGrace),
		Backoff: lifecycle.Backoff{
			Initial:    Seconds(spec.Backoff.InitialSeconds, defaultBackoffInitial),
			Max:        Seconds(spec.Backoff.MaxSeconds, defaultBackoffMax),
			ResetAfter: Seconds(spec.Backoff.ResetAfterSeconds, defaultBackoffReset),
		},
		Breaker: lifecycle.Breaker{
			Threshold: int(ptr.Deref(spec.Breaker.FailureThreshold, defaultBreakerThreshold)),
			Window:    Seconds(spec.Breaker.WindowSeconds, defaultBreakerWindow),
			CoolDown:  Seconds(spec.Breaker.CoolDownSeconds, defaultBreakerCoolDown),
		},
		Orphan:            v.orphan,
		Reserve:           v.reserves,
		RecordFirst:       v.start.RecordFirst,
		KeepsPreviousExit: v.runtime.Capabilities().KeepsPreviousExit,
		Blocked:           v.start.Blocked,
		Probed:            v.start.Probed,
		Once:              kind.Traits(v.object).Once,
	}
}

// Seconds converts a number of seconds, or otherwise if it is unset.
func Seconds(n *int32, otherwise int32) time.Duration {
	return time.Duration(ptr.Deref(n, otherwise)) * time.Second
}
