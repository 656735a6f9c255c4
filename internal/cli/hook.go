// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hook"
)

const (
	// hookTime bounds berth hook, because the agent waits for its hooks. hookAnswerTime is how long it waits for the manager.
	hookTime       = 1500 * time.Millisecond
	hookAnswerTime = time.Second
)

// hookFlags holds the values of the flags of berth hook.
type hookFlags struct {
	state, question, session, stateDir string
	verbose                            bool
}

func (a *app) hookCommand() *cobra.Command {
	f := &hookFlags{}
	command := &cobra.Command{
		Use:   "hook [EVENT]",
		Short: "Report from a hook of a coding agent what the agent does",
		Long: "Hook is called by the hooks of a coding agent that runs in an Instance. It reports to the manager whether the agent works, waits for an answer, or is done.\n" +
			"Hook reads the event of Claude Code, Codex, Gemini CLI or Qwen Code from standard input, and the notification of Codex from its argument. For other agents,\n" +
			"--state sets the state.\n" +
			"The manager finds the Instance by the ancestors of this process. Outside an Instance and without a manager, hook does nothing.\n" +
			"Hook never disturbs the agent: it prints nothing, ends after at most 1.5 s, and its exit code is always 0. berth init installs the hooks.",
		Example: "  # In the hooks of Claude Code, Codex, Gemini CLI and Qwen Code\n" +
			"  berth hook\n\n" +
			"  # In ~/.codex/config.toml, for a version of Codex without hooks\n" +
			"  notify = [\"berth\", \"hook\"]\n\n" +
			"  # In a plugin of another agent\n" +
			"  berth hook --state Waiting --question permission",
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			a.hook(f, args)
			return nil
		},
	}
	command.SetFlagErrorFunc(func(*cobra.Command, error) error { return nil }) // agents interpret some exit codes
	flags := command.Flags()
	flags.StringVar(&f.state, "state", "", "state of the agent: Working, Waiting, Done or Failed; default: the state that the event implies")
	flags.StringVar(&f.question, "question", "", "with --state Waiting, the kind of the question, such as permission; default: question")
	flags.StringVar(&f.session, "session", "", "with --state, the ID that the agent uses for its conversation")
	flags.StringVar(&f.stateDir, "state-dir", "", "state directory of the manager; default: the one in "+hook.SocketVariable+", which Berth sets, else that of berth up")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print to standard error why nothing was reported")
	return command
}

// namesHook reports whether a command line is one of berth hook, also with flags before that word, which no command has: a hook must not fail its agent. A word
// that follows a flag can be its value.
func namesHook(args []string) bool {
	for i, arg := range args {
		if arg == "hook" {
			return true
		}
		if !strings.HasPrefix(arg, "-") && (i == 0 || !strings.HasPrefix(args[i-1], "-")) {
			return false
		}
	}
	return false
}

// hook reports what the agent does, within hookTime.
func (a *app) hook(f *hookFlags, args []string) {
	done := make(chan error, 1)
	go func() {
		err := a.report(f, args)
		if f.state == "" && len(args) == 0 {
			hook.Drain(a.in)
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(hookTime):
		err = errors.New("the time is over")
	}
	if err != nil && f.verbose {
		a.say("not reported: %v", err)
	}
}

func (a *app) report(f *hookFlags, args []string) error {
	report := hook.Report{State: v1alpha1.AgentState(f.state), Question: f.question, SessionID: f.session}
	switch {
	case f.state != "":
		if report.State == v1alpha1.AgentWaiting {
			report.Question = cmp.Or(report.Question, "question")
		}
		if err := report.Validate(); err != nil {
			return err
		}
	default:
		input, relevant := a.in, false
		if len(args) > 0 {
			input = strings.NewReader(args[0])
		}
		if report, relevant = hook.Parse(input); !relevant {
			return errors.New("the event means nothing to Berth")
		}
	}
	socket := os.Getenv(hook.SocketVariable)
	if f.stateDir != "" || socket == "" {
		socket = hook.Locate(cmp.Or(f.stateDir, defaultStateDir()), nil).Socket()
	}
	return hook.Send(socket, report, hookAnswerTime)
}
