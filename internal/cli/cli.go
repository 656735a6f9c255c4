// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli implements the command line of Berth.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
)

// app holds what all commands share. Tests substitute their own streams, clock, connection and runtime.
type app struct {
	in io.Reader
	// out and err receive readable text. The writers that plain installs replace control characters in it.
	out, err io.Writer
	// raw is the unfiltered out. It is used for the output of processes, for protocols, and for cursor movement.
	raw   io.Writer
	clock clock.WithTicker
	// connect connects to the API server that the flags select.
	connect func(*connectionFlags) (*connection, error)
	// newRuntime creates the runtime of berth up and berth manager.
	newRuntime func(runtimeOptions) (*backends, error)
}

// Exit codes of the commands.
const (
	exitFailure = 1
	exitUsage   = 2 // the command line is invalid
	exitMissing = 3 // a named object does not exist
	exitTimeout = 4 // the timeout of --wait has passed
	exitAsked   = 5 // send has answered a question, and another one follows
	exitSignal  = 130
)

// errTimeout is wrapped by the error of a command whose timeout has passed.
var errTimeout = errors.New("timeout")

// Main runs the command line and returns the exit code: 0 for success, or one of the exit codes above.
func Main(args []string) int {
	ctx, stop := signals()
	defer stop()
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, clock: clock.RealClock{}, connect: connect, newRuntime: openBackends}
	return a.run(ctx, args)
}

// Command returns the command line for documentation; it cannot be run.
func Command() *cobra.Command { return (&app{}).command("berth") }

// completer is the name under which kubectl runs this program to complete the arguments of kubectl berth.
const completer = "kubectl_complete-berth"

func (a *app) run(ctx context.Context, args []string) int {
	a = a.plain()
	name := filepath.Base(args[0])
	root := a.command(name)
	if name == completer {
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args[1:]...))
	} else {
		root.SetArgs(args[1:])
	}
	err := root.ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil || namesHook(args[1:]) && errors.As(err, &usage):
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return exitSignal
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(a.err, "error: %v\n\n%s", err, usage.help)
		return exitUsage
	case strings.HasPrefix(err.Error(), "unknown command "): // cobra has no type for this error
		_, _ = fmt.Fprintf(a.err, "error: %v\n", err)
		return exitUsage
	}
	_, _ = fmt.Fprintf(a.err, "error: %v\n", explain(err))
	switch {
	case errors.Is(err, errMissing):
		return exitMissing
	case errors.Is(err, errTimeout):
		return exitTimeout
	case asksAnother(err):
		return exitAsked
	default:
		return exitFailure
	}
}

// group makes a command that only has subcommands reject other arguments. Cobra does that only for the root command.
func group(command *cobra.Command) {
	command.Args = func(command *cobra.Command, args []string) error {
		if len(args) > 0 {
			return &usageError{fmt.Errorf("unknown command %q for %q", args[0], command.CommandPath()), command.UsageString()}
		}
		return nil
	}
	command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
}

// plain returns a copy of the app whose out and err filter control characters.
func (a *app) plain() *app {
	plain := *a
	plain.raw, plain.out, plain.err = a.out, &plainWriter{a.out}, &plainWriter{a.err}
	return &plain
}

// usageError is a command line that could not be parsed. help is the usage text to print.
type usageError struct {
	error
	help string
}

func (e *usageError) Unwrap() error { return e.error }

func (a *app) command(name string) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Manage sessions, dev servers, language servers and plans as Kubernetes resources",
		Long: "Berth runs the processes that coding agents need: sessions (Instance), dev servers (DevServer) and language servers (LanguageServer). " +
			"It also carries out plans (Action, Plan), which run strategies (Strategy, StrategyRun).\n" +
			"All of these are Kubernetes resources: declare the desired state with kubectl apply, and Berth maintains it.\n\n" +
			"KIND is devserver (devservers, dsv), instance (instances, inst), languageserver (languageservers, lsv) or strategyrun (strategyruns, srun); " +
			"berth status also accepts strategy (strategies, strat), plan (plans) and instancediscovery (instancediscoveries, disc).\n\n" +
			"Commands that take KIND/NAME... also accept KIND NAME..., and most of them KIND --all and KIND -l LABELS.\n" +
			"The connection flags of kubectl, such as --as, --server and --token, are accepted by every command that uses an API server.\n\n" +
			"The exit code is 0 for success, 1 for a failure, 2 for an invalid command line, 3 if a named object does not exist, 4 if the timeout of --wait has\n" +
			"passed, 5 if berth send has answered a question and another one follows, and 130 after a signal.",
		Example: "  # Run a control plane and the manager on this machine, and apply the manifests in a directory\n" +
			"  berth up -f manifests/\n\n" +
			"  # Show the objects of the namespace, follow the output of one, and restart it\n" +
			"  berth status\n" +
			"  berth logs -f devserver/web\n" +
			"  berth restart devserver/web",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	if plugin, ok := strings.CutPrefix(name, "kubectl-"); ok {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl " + plugin}
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error { return &usageError{err, command.UsageString()} })
	root.AddCommand(
		a.upCommand(), a.downCommand(), a.managerCommand(), a.statusCommand(), a.waitingCommand(), a.notifyCommand(), a.describeCommand(), a.waitCommand(), a.eventsCommand(), a.topCommand(), a.logsCommand(), a.attachCommand(), a.sendCommand(), a.openCommand(), a.discoverCommand(),
		a.applyCommand(), a.restartCommand(), a.stopCommand(), a.startCommand(), a.deleteCommand(), a.adoptCommand(), a.lspCommand(),
		a.useCommand(), a.planCommand(), a.runCommand(), a.resetCommand(), a.initCommand(), a.hookCommand(), a.mcpCommand(), a.versionCommand(),
	)
	return root
}

// needs wraps a check of arguments, so that an invalid command line also prints the usage of the command.
func needs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return &usageError{err, command.UsageString()}
		}
		return nil
	}
}

// echo is how long signals after the first one are ignored as duplicates: timeout(1) and terminals may send a signal twice, to a process and to its group.
const echo = time.Second

// signals returns a context that is canceled by the first SIGINT, SIGTERM or SIGHUP. A further signal exits the program immediately with code 130, unless it
// arrives within the duration echo after the first one. SIGHUP is not handled if it is ignored at startup, as under nohup.
func signals() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	caught := make(chan os.Signal, 2)
	watched := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // ignored under nohup
		watched = append(watched, syscall.SIGHUP)
	}
	signal.Notify(caught, watched...)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case <-caught:
				switch {
				case first.IsZero():
					first = time.Now()
					cancel()
				case time.Since(first) > echo:
					os.Exit(130)
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		close(done)
		cancel()
	}
}

// outlivePipes keeps this program alive when the reader of its output exits, as in "berth up | head". Later writes fail with EPIPE, and that error is ignored.
// The signal is caught and dropped instead of ignored, because child processes would inherit an ignored signal.
func outlivePipes() (stop func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGPIPE)
	return func() { signal.Stop(caught) }
}

func (a *app) say(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format+"\n", args...) }

func (a *app) versionCommand() *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  berth version",
		Args:    needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			switch format {
			case "json", "yaml":
				return a.printValue(format, map[string]string{"version": version(), "goVersion": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			case "":
				_, err := fmt.Fprintf(a.out, "berth %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return err
			}
			return &usageError{fmt.Errorf("-o %q is not supported: use json or yaml", format), command.UsageString()}
		},
	}
	command.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	return command
}

// release is the version of a release, such as v0.1.0. make release sets it.
var release string

// version returns the version of the release or of the module. For a development build it returns the commit, if known.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	text := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && text == "(devel)" {
			text = "devel-" + setting.Value[:min(12, len(setting.Value))]
		}
	}
	return text
}
