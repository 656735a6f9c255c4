// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "github.com/berth-dev/berth/api/v1alpha1"

// exitMeaning is what the reason of an exit (lastExit.reason) means. The zero value means a failed start that is not repeated, because its cause persists until a
// user changes something.
type exitMeaning struct {
	// ran means that the program was executed.
	ran bool
	// requested means that Berth stopped the process because that was requested; no restart policy applies.
	requested bool
	// succeeded means that the program exited with code 0.
	succeeded bool
	// failed means that the program failed by itself, so its output may show the cause in the status of an object that permits that.
	failed bool
	// unhealthy means that Berth stopped the process because of what a check reported.
	unhealthy bool
	// lost means that the process ended together with its Pod or its host, which does not indicate a faulty program.
	lost bool
	// output means that the output of the program may explain the exit.
	output bool
	// retried means that a failed start is repeated, with a back-off.
	retried bool
	// healable means that the check of the program shows when the cause of a failed start is gone.
	healable bool
}

// exits has a row for each reason that an exit can have. A reason that a backend made up counts as a failed start that is not repeated.
var exits = map[string]exitMeaning{
	v1alpha1.ReasonStopped:   {ran: true, requested: true},
	v1alpha1.ReasonCompleted: {ran: true, succeeded: true, output: true},
	v1alpha1.ReasonFailed:    {ran: true, failed: true, output: true},
	v1alpha1.ReasonUnknown:   {ran: true, output: true},
	v1alpha1.ReasonLost:      {ran: true, lost: true},

	v1alpha1.ReasonUnhealthy:     {ran: true, unhealthy: true, output: true},
	v1alpha1.ReasonHung:          {ran: true, unhealthy: true, output: true},
	v1alpha1.ReasonProtocolError: {ran: true, unhealthy: true, output: true},
	v1alpha1.ReasonMemoryLimit:   {ran: true, unhealthy: true, output: true},
	v1alpha1.ReasonCanaryFailed:  {ran: true, unhealthy: true, output: true},
	v1alpha1.ReasonTimedOut:      {ran: true, unhealthy: true, output: true},

	v1alpha1.ReasonStartFailed:       {retried: true},
	v1alpha1.ReasonCommandNotFound:   {healable: true},
	v1alpha1.ReasonPermissionDenied:  {healable: true},
	v1alpha1.ReasonWorkingDirMissing: {healable: true},

	v1alpha1.ReasonImageMissing:       {},
	v1alpha1.ReasonContainerMissing:   {},
	v1alpha1.ReasonContainerTaken:     {},
	v1alpha1.ReasonInvalidSession:     {},
	v1alpha1.ReasonSessionTaken:       {},
	v1alpha1.ReasonNothingToAdopt:     {},
	v1alpha1.ReasonInvalidEnvironment: {},
}

// CanHeal reports whether Berth checks the program again, with Inspection.CheckProgram of the backend, after a start that failed for the reason.
func CanHeal(reason string) bool { return exits[reason].healable }

// Ran reports whether the program ran and exited by itself or because it was unhealthy, so that its output may contain the cause.
func Ran(end *v1alpha1.ProcessExit) bool { return exits[end.Reason].output }

// failureReason returns the reason of the restart, and of the event, after an exit that was not requested.
func failureReason(reason string) string {
	if meaning := exits[reason]; meaning.lost || meaning.unhealthy {
		return reason
	}
	return v1alpha1.ReasonCrashed
}
