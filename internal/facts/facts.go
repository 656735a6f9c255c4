// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package facts holds what a backend reports about the incarnations of an object: phase, identity, address and exit. Backends fill these types,
// controllers pass them on without translation, and internal/lifecycle uses them for its decisions. Apart from small predicates, the package contains no
// logic.
package facts

import "time"

// Phase is the state of one incarnation.
type Phase string

const (
	// Starting means that the start was requested, but the backend has not observed the program running yet.
	Starting Phase = "Starting"
	// Running means that the program was executed and at least one process of its tree lives.
	Running Phase = "Running"
	// Exited means that the program has ended and no process of its tree is left.
	Exited Phase = "Exited"
	// Failed means that the program could not be executed; StartError says why. No process is left.
	Failed Phase = "Failed"
	// Unknown means that the backend cannot determine whether a process lives. While an incarnation is in this phase, no other incarnation may be started.
	Unknown Phase = "Unknown"
)

// Incarnation is what a backend observed of one incarnation of an object.
type Incarnation struct {
	// UID is the UID of the object. It is a string, because the shim and the multiplexer import this package and must not depend on Kubernetes packages.
	UID    string
	Number int64
	// Name is the display name of the object, such as devservers/default/web. It is used in messages, and to find the processes
	// of deleted objects with that name.
	Name  string
	Phase Phase

	// Node, PID, StartTicks and BootID identify the program. StartTicks is its start time in clock ticks since boot. StartedAt is when it was executed.
	Node       string
	PID        int64
	StartTicks int64
	BootID     string
	StartedAt  time.Time
	// ContainerID is the ID of the container. Only backends with containers set it.
	ContainerID string
	// Namespace and PodName are the namespace and the name of the Pod. Address is the IP address of the Pod; empty until the cluster has assigned one. Only
	// backends with Pods set these fields.
	Namespace, PodName, Address string

	// Exit is set when the phase is Exited.
	Exit *Exit
	// StartError is set when the phase is Failed.
	StartError *StartError
	// LeaderExit is set when the program itself has exited while other processes of its tree still live (phase Running). The backend terminates these
	// other processes.
	LeaderExit *Exit
	// Origin is what the incarnation was started with, if the backend stores it.
	Origin Origin
	// Before is the previous incarnation and its exit, if the backend stores them; nil otherwise.
	Before *Ended
	// Containment is how Berth finds and kills the whole tree: Cgroup, Subreaper or Container.
	Containment string
	// Adopted reports that the process existed before Berth took it over.
	Adopted bool
	// StopSent reports that Stop was already carried out on this incarnation. The backend stores this, so that a new manager does not send a second signal:
	// some programs exit immediately on a second one.
	StopSent bool
	// StopDeferred reports that Stop was called, but sent no signal, because the program cannot receive one yet. The caller must call Stop again. StopSent is
	// then false.
	StopDeferred bool
	// Message explains why the phase is Unknown. In the phase Starting, it states what the incarnation waits for; in the phase Running, what is unusual. In both
	// phases it may be empty.
	Message string
	// Killable reports, for phase Unknown, that Kill works and that the exit will be observed afterwards.
	Killable bool
}

// Alive reports whether a process of the incarnation lives or may live.
func (i Incarnation) Alive() bool {
	return i.Phase == Starting || i.Phase == Running || i.Phase == Unknown
}

// MayBelongTo reports whether the incarnation can be one of an object in a namespace. Labels do not prove who created a Pod: a user who can create Pods in one
// namespace can copy the labels of an object of another one. The incarnations of backends without Pods are in no namespace.
func (i Incarnation) MayBelongTo(namespace string) bool {
	return i.Namespace == "" || i.Namespace == namespace
}

// Exit describes the exit of a program. Code and Signal are never guessed: Known is false if the exit was not observed.
type Exit struct {
	Known      bool      `json:"known"`
	Code       int32     `json:"code"`
	Signal     string    `json:"signal,omitempty"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Lost reports that neither the program nor Berth caused the exit, for example because a node was drained or a user deleted the Pod. A backend cannot
	// always distinguish such an exit from the effect of Stop; internal/lifecycle knows whether it requested a stop.
	Lost bool `json:"lost,omitempty"`
	// Left names the processes that the program left running when it exited, such as "nginx (3)". The backend has killed them. Empty if there were none or
	// if the backend does not know.
	Left string `json:"left,omitempty"`
	// Message describes for users what else is known about the exit.
	Message string `json:"message,omitempty"`
	// LogTail is the end of the output of a program that failed, if the spec permits it. The reconciler reads it from the log of the backend.
	LogTail string `json:"-"`
}

// StartError is why a program could not be executed. Reason is a condition reason of the API, such as CommandNotFound, WorkingDirMissing, ImageMissing or
// StartFailed.
type StartError struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Error implements error.
func (e *StartError) Error() string { return e.Message }

// Origin is the part of the spec that an incarnation was started with, for a manager that has no record of the start, or the record of another one.
type Origin struct {
	SpecHash     string `json:"specHash,omitempty"`
	RestartToken string `json:"restartToken,omitempty"`
	// SessionStart is how the incarnation was started: a SessionStart of the API; empty if the kind has no sessions. ResumeHash is the fingerprint of the command
	// with which the spec resumed the session.
	SessionStart string `json:"sessionStart,omitempty"`
	ResumeHash   string `json:"resumeHash,omitempty"`
}

// Ended is an earlier incarnation and its exit.
type Ended struct {
	Number int64 `json:"incarnation"`
	Exit   Exit  `json:"exit"`
}
