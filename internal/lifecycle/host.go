// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
)

// An object that runs on a machine belongs to one host: a machine together with a state directory. Several hosts may serve one API server. The label
// berth.dev/host names the host that should run the object, and status.hostName the holder: the host that may have its process.
//
// A host starts a process only while the label names this host and status.hostName names no other host. The holder clears status.hostName only after its
// process has exited. Another host takes over earlier only if a user declares the holder lost. So at most one host runs the object at any time.

// HostClaim is what a manager knows about the host of one object.
type HostClaim struct {
	// Self is the host of this manager; empty for a manager that runs nothing on a machine.
	Self string
	// Label is the value of berth.dev/host, and Lost that of berth.dev/lost-host.
	Label, Lost string
	// Holder is status.hostName.
	Holder string
}

// HostDecision is what a manager does about an object because of its host.
type HostDecision string

const (
	// HostServe reconciles the object.
	HostServe HostDecision = "Serve"
	// HostTake first sets the label to this host, with an optimistic lock, and then reconciles the object. The same write removes the annotation that
	// declares this host lost.
	HostTake HostDecision = "Take"
	// HostMove stops the process and clears status.hostName, so that the host that the label names can take over.
	HostMove HostDecision = "Move"
	// HostLeave does not touch the object: it belongs to another host.
	HostLeave HostDecision = "Leave"
)

// Decide returns what the manager does about the object.
func (c HostClaim) Decide() HostDecision {
	holder := c.Holder
	if c.declaredLost() {
		holder = ""
	}
	switch {
	case c.Self == "":
		if c.Label == "" && holder == "" {
			return HostServe // the reconcile then reports that this manager runs nothing on a machine
		}
		return HostLeave
	case holder != "" && holder != c.Self:
		return HostLeave
	case c.Label == "", c.Label == c.Self && c.Lost == c.Self:
		return HostTake // HostTake removes the annotation; otherwise the next host could start the process before this host has stopped it
	case c.Label == c.Self:
		return HostServe
	case holder == c.Self:
		return HostMove
	default:
		return HostLeave
	}
}

// declaredLost reports whether a person declared the holder gone and chose this host instead.
func (c HostClaim) declaredLost() bool {
	return c.Self != "" && c.Lost != "" && c.Lost == c.Holder && c.Label == c.Self
}

// Owner returns the host that an object with the decision HostLeave belongs to.
func (c HostClaim) Owner() string { return cmp.Or(c.Holder, c.Label) }

// HostUnavailable returns the status of an object whose host does not report. Its process may still run, so only the conditions change.
func HostUnavailable(record v1alpha1.ProcessStatus, owner string, generation int64, now metav1.Time) v1alpha1.ProcessStatus {
	status := *record.DeepCopy()
	message := fmt.Sprintf("Host %q does not report; its process may still run. Start berth on that host, or run \"berth adopt --host-is-gone\" if it will never come back.", owner)
	w := conditions.Writer{Conditions: &status.Conditions, Generation: generation, Now: now.Time}
	w.Set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonHostUnavailable, message)
	w.Set(v1alpha1.ConditionReconciling, metav1.ConditionFalse, v1alpha1.ReasonHostUnavailable, "")
	w.Set(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonHostUnavailable, message)
	return status
}

// decideMove stops the process, then releases the object to the host that its label names.
func (m *machine) decideMove(current *facts.Incarnation) {
	m.reconciling(v1alpha1.ReasonMoving, fmt.Sprintf("Moving to host %q.", m.desired.MoveTo))
	if current != nil && current.Alive() && !m.desired.Orphan { // an adopted session stays where it is
		m.observeProcess(*current)
		m.stopThenKill(*current, v1alpha1.ReasonStopped, "")
		return
	}
	// The new host starts fresh: without a fingerprint the next start is unconditional.
	m.status.SpecHash, m.status.HostName = "", ""
	m.forgetFailures()
	m.step.Action = Forget
}

// takeOver records this host as the holder. If the former holder was declared lost, takeOver stores it in lostHost.
func (m *machine) takeOver() {
	if m.desired.Host == "" || m.status.HostName == m.desired.Host {
		return
	}
	m.lostHost = m.status.HostName
	m.status.HostName = m.desired.Host
}

// mayPreStart reports whether the process may be started before the write that announces the start. If that write also records this host as the holder, a
// pre-start is permitted only for a new object, whose record contains neither a host nor an incarnation.
func (m *machine) mayPreStart(record *v1alpha1.ProcessStatus) bool {
	return m.desired.Host == "" || record.HostName == m.desired.Host || record.Incarnation == 0 && record.HostName == ""
}
