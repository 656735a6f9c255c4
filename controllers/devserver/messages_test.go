// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// announced matches the time of the next start in a message.
var announced = regexp.MustCompile(`estarts at [0-9TZ:-]+`)

// story is one process and its record, without a backend.
type story struct {
	desired  lifecycle.Desired
	observed lifecycle.Observed
	status   v1alpha1.ProcessStatus
	now      time.Time
}

func newStory() *story {
	return &story{now: epoch, desired: lifecycle.Desired{
		UID: "uid-web", Generation: 1, State: lifecycle.DesiredRunning, SpecHash: "a", Logs: "berth logs devserver/web", Restart: "berth restart devserver/web",
		RestartPolicy: v1alpha1.RestartAlways, UpdatePolicy: v1alpha1.UpdateRecreate, Grace: 10 * time.Second, Probed: true,
		Backoff: lifecycle.Backoff{Initial: 2 * time.Second, Max: time.Minute, ResetAfter: time.Minute},
		Breaker: lifecycle.Breaker{Threshold: 2, Window: 3 * time.Minute, CoolDown: 10 * time.Minute},
	}}
}

func (s *story) next() { s.status = lifecycle.Next(s.desired, s.status, s.observed, s.now).Status }

// runs makes the next incarnation run, ready or not.
func (s *story) runs(ready bool, notReady string) {
	s.next()
	s.observed = lifecycle.Observed{Ready: &ready, NotReady: notReady, Incarnations: []facts.Incarnation{
		{Number: s.status.Incarnation, Phase: facts.Running, PID: 7, StartedAt: s.now},
	}}
	s.next()
}

// exits makes the running incarnation exit at once.
func (s *story) exits(exit facts.Exit) {
	exit.FinishedAt = s.now
	s.observed = lifecycle.Observed{Incarnations: []facts.Incarnation{{Number: s.status.Incarnation, Phase: facts.Exited, Exit: &exit}}}
	s.next()
}

// fails makes the start fail because of the program or its directory.
func (s *story) fails(command []string, dir string) {
	s.next()
	launch := shim.Launch{Command: command, Dir: dir, Env: []string{"PATH=/usr/bin"}}
	_, failure := launch.Resolve()
	s.observed = lifecycle.Observed{Program: &lifecycle.ProgramCheck{Reason: failure.Reason}, Incarnations: []facts.Incarnation{
		{Number: s.status.Incarnation, Phase: facts.Failed, StartError: failure},
	}}
	s.next()
}

func (s *story) blocked(by *lifecycle.Blocked) {
	s.desired.Blocked = by
	s.next()
}

// tells returns what kubectl describe shows first: the conditions that are True, with their messages.
func (s *story) tells() string {
	var lines []string
	ready := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady)
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting} {
		c := meta.FindStatusCondition(s.status.Conditions, conditionType)
		if c.Status != metav1.ConditionTrue {
			continue
		}
		line := conditionType + " " + c.Reason
		if conditionType != v1alpha1.ConditionRestarting || c.Message != ready.Message { // the message of a back-off is the same in both
			line += ": " + c.Message
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestMessages_OfUsualStates checks the exact text of the messages that users see most often.
func TestMessages_OfUsualStates(t *testing.T) {
	dir := t.TempDir()
	on := func(ports ...int32) snapshot {
		s := snapshot{now: epoch.Add(time.Hour), history: history{listeningSince: epoch}}
		for _, port := range ports {
			s.listeners = append(s.listeners, listenerOn("127.0.0.1", port))
		}
		return s
	}
	for name, c := range map[string]struct {
		arrange func(s *story, kind *fixture)
		want    string
	}{
		"starting": {
			func(s *story, _ *fixture) { s.next() },
			"Reconciling Starting: Starting incarnation 1.",
		},
		"running": {
			func(s *story, _ *fixture) { s.runs(true, "") },
			"Ready Running: Incarnation 1 is running.",
		},
		"back-off after an exit code": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.exits(facts.Exit{Known: true, Code: 1}) },
			"Reconciling BackOff: Incarnation 1 ended with exit code 1. Restarts at TIME. To see the output, run \"berth logs devserver/web\".\n" +
				"Restarting Crashed",
		},
		"back-off after a signal": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.exits(facts.Exit{Known: true, Signal: "SIGSEGV"}) },
			"Reconciling BackOff: Incarnation 1 was terminated by SIGSEGV. Restarts at TIME. To see the output, run \"berth logs devserver/web\".\n" +
				"Restarting Crashed",
		},
		"restart after a back-off": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.exits(facts.Exit{Known: true, Code: 1})
				s.now = s.status.NextRestartTime.Time
				s.next()
			},
			"Reconciling Starting: Starting incarnation 2.\nRestarting Crashed",
		},
		"the breaker is open": {
			func(s *story, _ *fixture) {
				for range 2 {
					s.runs(true, "")
					s.exits(facts.Exit{Known: true, Code: 127})
					s.now = s.now.Add(time.Minute)
				}
			},
			"Stalled CircuitOpen: Incarnation 2 ended with exit code 127. Too many failures; restarts at TIME. " +
				"To retry now, run \"berth restart devserver/web\". To see the output, run \"berth logs devserver/web\".",
		},
		"the breaker is open until a reset": {
			func(s *story, _ *fixture) {
				s.desired.Breaker = lifecycle.Breaker{Threshold: 1, Window: time.Minute}
				s.runs(true, "")
				s.exits(facts.Exit{Known: true, Code: 1})
			},
			"Stalled CircuitOpen: Incarnation 1 ended with exit code 1. Too many failures. " +
				"Correct the cause, then run \"berth restart devserver/web\". To see the output, run \"berth logs devserver/web\".",
		},
		"a program that ends with exit code 0 is restarted too often": {
			func(s *story, _ *fixture) {
				s.desired.Breaker = lifecycle.Breaker{Threshold: 1, Window: time.Minute}
				s.runs(true, "")
				s.exits(facts.Exit{Known: true})
			},
			"Stalled CircuitOpen: Incarnation 1 ended with exit code 0, but with restartPolicy Always it must keep running; set spec.restartPolicy to OnFailure " +
				"if it may end. Too many failures. Correct the cause, then run \"berth restart devserver/web\". To see the output, run \"berth logs devserver/web\".",
		},
		"a liveness probe fails too often": {
			func(s *story, _ *fixture) {
				s.desired.Breaker = lifecycle.Breaker{Threshold: 1, Window: time.Minute}
				s.runs(true, "")
				s.observed.Unhealthy = "GET http://127.0.0.1:8080/alive returned status 503"
				s.next()
				s.observed.Unhealthy = ""
				s.exits(facts.Exit{Known: true, Signal: "SIGTERM"})
			},
			"Stalled CircuitOpen: Incarnation 1 was stopped. The liveness probe failed: GET http://127.0.0.1:8080/alive returned status 503. " +
				"Too many failures. Correct the cause, then run \"berth restart devserver/web\". To see the output, run \"berth logs devserver/web\".",
		},
		"the command does not exist": {
			func(s *story, _ *fixture) { s.fails([]string{"no-such-program"}, dir) },
			"Stalled CommandNotFound: The program \"no-such-program\" is in none of the directories of PATH (/usr/bin); install it, " +
				"or give its full path in spec.process.command. Berth checks this again and starts the process as soon as the check passes.",
		},
		"the working directory does not exist": {
			func(s *story, _ *fixture) { s.fails([]string{"sh"}, "/nope") },
			"Stalled WorkingDirMissing: The working directory /nope does not exist or is not a directory; create it or correct spec.process.workingDir. " +
				"Berth checks this again and starts the process as soon as the check passes.",
		},
		"a Secret is missing": { // TestResolve_ReadsValuesOrBlocks checks the code that creates this message
			func(s *story, _ *fixture) {
				s.blocked(&lifecycle.Blocked{Reason: v1alpha1.ReasonInvalidEnvironment,
					Message: "Environment variable TOKEN: Secret api does not exist in namespace default; create it."})
			},
			"Stalled InvalidEnvironment: Environment variable TOKEN: Secret api does not exist in namespace default; create it.",
		},
		"the port belongs to another object": {
			func(s *story, kind *fixture) { s.blocked(kind.prepare(server("web", 2, fixedPort(8081))).Blocked) },
			"Stalled PortClaimed: Port 8081 belongs to DevServer default/db, which claimed it first. Stop or delete that DevServer, or set another spec.port.",
		},
		"another program uses the port": {
			func(s *story, kind *fixture) {
				kind.backend.owners[8080] = &runtime.PortOwner{PID: 1234, Command: "nginx"}
				s.blocked(kind.prepare(server("web", 2, fixedPort(8080))).Blocked)
			},
			"Stalled PortInUse: Port 8080 is used by pid 1234 (nginx). Stop that process or set another spec.port.",
		},
		"the server does not listen yet": {
			func(s *story, _ *fixture) {
				s.runs(false, notListening(server("web", 0, assignedPort(8080)), snapshot{}))
			},
			"Reconciling NotReady: The server does not listen on a TCP port yet; its assigned port is 8080.",
		},
		"the server has not listened for 30 s": {
			func(s *story, _ *fixture) {
				s.runs(false, notListening(server("web", 0, assignedPort(8080)), snapshot{now: s.now.Add(adviceTime), started: s.now}))
			},
			"Reconciling NotReady: The server does not listen on a TCP port yet; its assigned port is 8080. Pass $(PORT) in spec.process.command, " +
				"or let the program read the variable PORT. If it is not a server, use the kind Instance.",
		},
		"a server that was ready closes its port": {
			func(s *story, _ *fixture) {
				s.runs(false, notListening(server("web", 0, assignedPort(8080)), snapshot{now: s.now.Add(time.Hour), started: s.now, wasReady: true}))
			},
			"Reconciling NotReady: The server does not listen on a TCP port yet; its assigned port is 8080.",
		},
		"the readiness probe fails": { // TestHTTP_DecidesByStatus of internal/probe checks the code that creates this message
			func(s *story, _ *fixture) {
				s.runs(false, "The readiness probe failed: GET http://127.0.0.1:8080/ready returned status 503")
			},
			"Reconciling NotReady: The readiness probe failed: GET http://127.0.0.1:8080/ready returned status 503.",
		},
		"the liveness probe fails": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.observed.Unhealthy = "no response within 1s"
				s.next()
			},
			"Reconciling Unhealthy: The liveness probe failed: no response within 1s.\nRestarting Unhealthy",
		},
		"a requested restart": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.desired.RestartToken = "1"; s.next() },
			"Reconciling Requested: Restarting because spec.restartToken changed.\nRestarting Requested",
		},
		"a changed spec": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.desired.SpecHash = "b"; s.next() },
			"Reconciling SpecChanged: Restarting because the spec changed.\nRestarting SpecChanged",
		},
		"stopping": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.desired.State = lifecycle.DesiredStopped; s.next() },
			"Reconciling Stopping: Stopping the process, because the spec requests it.",
		},
		"stopped": {
			func(s *story, _ *fixture) { s.desired.State = lifecycle.DesiredStopped; s.next() },
			"Ready Stopped: The process is stopped, as the spec requests. Set spec.state to Running to start it.",
		},
		"completed": {
			func(s *story, _ *fixture) {
				s.desired.RestartPolicy = v1alpha1.RestartOnFailure
				s.runs(true, "")
				s.exits(facts.Exit{Known: true})
			},
			"Ready Completed: Incarnation 1 ended with exit code 0. restartPolicy OnFailure does not restart the process. " +
				"To run it again, run \"berth restart devserver/web\".",
		},
		"failed for good": {
			func(s *story, _ *fixture) {
				s.desired.RestartPolicy = v1alpha1.RestartNever
				s.runs(true, "")
				s.exits(facts.Exit{Known: true, Code: 3})
			},
			"Stalled Failed: Incarnation 1 ended with exit code 3. restartPolicy Never does not restart the process. " +
				"To run it again, run \"berth restart devserver/web\". To see the output, run \"berth logs devserver/web\".",
		},
		"deleting": {
			func(s *story, _ *fixture) { s.runs(true, ""); s.desired.State = lifecycle.DesiredDeleted; s.next() },
			"Reconciling Deleting: The object is being deleted; stopping its process first.",
		},
		"deleting an adopted process": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.desired.State, s.desired.Orphan = lifecycle.DesiredDeleted, true
				s.next()
			},
			"Reconciling Deleting: The object is being deleted; the adopted process keeps running.",
		},
		"the host does not report": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.status = lifecycle.HostUnavailable(s.status, "desk", 1, metav1.NewTime(s.now))
			},
			"Stalled HostUnavailable: Host \"desk\" does not report; its process may still run. Start berth on that host, " +
				"or run \"berth adopt --host-is-gone\" if it will never come back.",
		},
		"moving to another host": {
			func(s *story, _ *fixture) {
				s.desired.State, s.desired.MoveTo = lifecycle.DesiredMoved, "desk"
				s.next()
			},
			"Reconciling Moving: Moving to host \"desk\".",
		},
		"the runtime is missing": {
			func(s *story, kind *fixture) {
				backend := runtime.NewRegistry(kind.backend, logr.Discard()).For(v1alpha1.RuntimeDocker)
				s.blocked(&lifecycle.Blocked{Reason: v1alpha1.ReasonRuntimeUnavailable, Message: backend.Capabilities().Disabled})
			},
			"Stalled RuntimeUnavailable: This manager does not serve the runtime Docker.",
		},
		"asleep": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.desired.State = lifecycle.DesiredAsleep
				s.next()
				s.exits(facts.Exit{Known: true})
			},
			"Ready Idle: Idle. Starts on the next use.",
		},
		"unknown": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.observed.Incarnations[0] = facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "the shim does not respond"}
				s.next()
			},
			"Stalled Unknown: Cannot determine whether the process is running: the shim does not respond. Berth does not stop or start anything until it can.",
		},
		"unknown, but can be killed": {
			func(s *story, _ *fixture) {
				s.runs(true, "")
				s.observed.Incarnations[0] = facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "the shim does not respond", Killable: true}
				s.next()
			},
			"Stalled Unknown: Cannot determine whether the process is running: the shim does not respond. Berth does nothing until it can. " +
				"To kill the process after its grace period, stop, restart or delete the object.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			kind := newFixture(t, server("db", 0, fixedPort(8081)))
			s := newStory()
			c.arrange(s, kind)
			told := announced.ReplaceAllString(s.tells(), "estarts at TIME")
			g.Expect(told).To(Equal(c.want))
			g.Expect(conditionstest.Faulty(s.status.Conditions)).To(BeEmpty())
		})
	}
	for name, c := range map[string]struct {
		snapshot snapshot
		want     string
	}{
		"listens on no port": {on(), "NotListening: The server does not listen on port 8080."},
		"listens on another port": {on(5000), "OtherPort: The server listens on 5000 instead of 8080. Pass $(PORT) to the program, " +
			"with its flag that forbids another port (such as --strictPort), or set spec.port to the port that it uses."},
	} {
		t.Run(name, func(t *testing.T) {
			verified := decide(server("web", 0, assignedPort(8080)), c.snapshot).portVerified
			NewWithT(t).Expect(fmt.Sprintf("%s: %s", verified.reason, verified.message)).To(Equal(c.want))
		})
	}
}
