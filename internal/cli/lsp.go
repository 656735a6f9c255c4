// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lsp/bridge"
	"github.com/berth-dev/berth/internal/lsp/control"
)

func (a *app) lspCommand() *cobra.Command {
	command := &cobra.Command{Use: "lsp", Short: "Connect to language servers, and print diagnostics", Example: "  berth lsp connect gopls\n  berth lsp diagnostics main.go"}
	group(command)
	command.AddCommand(a.lspConnectCommand(), a.lspSocketCommand(), a.lspDiagnosticsCommand())
	return command
}

func (a *app) lspConnectCommand() *cobra.Command {
	flags := &connectionFlags{}
	command := &cobra.Command{
		Use:   "connect NAME",
		Short: "Connect standard input and output to a LanguageServer",
		Long: "Editors run berth lsp connect instead of the language server itself. It speaks the Language Server Protocol on standard input and output.\n" +
			"If the server restarts or the connection is lost, connect reconnects. Run it on the machine of the manager. For a server in a Pod you can run it\n" +
			"anywhere: it connects through the API server with your permissions (services/proxy, and get on the Secret with the token of the server).",
		Example: "  # Connect an editor to the LanguageServer gopls: configure this command in place of gopls\n" +
			"  berth lsp connect gopls",
		Args: needs(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return a.lspConnect(command.Context(), flags, args[0], append(flagArguments(command.Flags()), args[0]))
		},
	}
	flags.add(command)
	ignoreEditorFlags(command)
	return command
}

// ignoreEditorFlags accepts the flags that editors add to every language server that they start.
func ignoreEditorFlags(command *cobra.Command) {
	command.Flags().Bool("stdio", true, "ignored; accepted for compatibility with editors")
	command.Flags().Int("clientProcessId", 0, "ignored; the command exits at the end of its standard input")
	_ = command.Flags().MarkHidden("stdio")
	_ = command.Flags().MarkHidden("clientProcessId")
}

// flagArguments returns the flags that were set, as arguments.
func flagArguments(flags *pflag.FlagSet) (args []string) {
	flags.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, several := flag.Value.(pflag.SliceValue); several {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	return args
}

// lspConnect connects an editor. again are the arguments with which the command lsp socket finds the same server.
func (a *app) lspConnect(ctx context.Context, flags *connectionFlags, word string, again []string) error {
	dialer, err := a.lspDialer(flags, word)
	if err != nil {
		return err
	}
	place, err := dialer.look(ctx)
	if err != nil {
		return err
	}
	if place != "" && !strings.HasPrefix(place, "https://") && a.in == os.Stdin {
		if err := becomeBridge(place, again); err != nil {
			return err
		}
	}
	return bridge.Run(ctx, bridge.Options{In: a.in, Out: a.raw, Dial: dialer.dial, Say: a.say})
}

// becomeBridge replaces this program with berth-lsp, which needs less memory. It returns if berth-lsp is not in the directory of this program. again are the
// arguments of the command lsp socket.
func becomeBridge(socket string, again []string) error {
	self, err := os.Executable()
	if err != nil {
		return nil //nolint:nilerr // this program can serve the editor, too
	}
	program := filepath.Join(filepath.Dir(self), "berth-lsp")
	if _, err := os.Stat(program); err != nil {
		return nil //nolint:nilerr // as above
	}
	return syscall.Exec(program, append([]string{"berth-lsp", "connect", socket, self, "lsp", "socket"}, again...), os.Environ())
}

// lspSocketCommand is the command with which berth-lsp finds the socket of a server again.
func (a *app) lspSocketCommand() *cobra.Command {
	flags := &connectionFlags{}
	command := &cobra.Command{
		Use: "socket NAME", Short: "Wait for the socket of a LanguageServer and print its path", Hidden: true, Args: needs(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			dialer, err := a.lspDialer(flags, args[0])
			if err != nil {
				return err
			}
			conn, err := dialer.dial(command.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, dialer.last)
			return errors.Join(err, conn.Close())
		},
	}
	flags.add(command)
	ignoreEditorFlags(command)
	return command
}

func (a *app) lspDialer(flags *connectionFlags, word string) (*languageServerDialer, error) {
	ref, err := parseLanguageServer(word)
	if err != nil {
		return nil, err
	}
	to, err := a.connect(flags)
	if err != nil {
		return nil, err
	}
	return &languageServerDialer{app: a, to: to, key: client.ObjectKey{Namespace: to.namespace, Name: ref}}, nil
}

// parseLanguageServer parses NAME, or languageserver/NAME as in the other commands.
func parseLanguageServer(word string) (string, error) {
	if !strings.Contains(word, "/") {
		return word, nil
	}
	ref, err := parseReference(word)
	if err != nil {
		return "", err
	}
	if ref.kind.singular != "languageserver" {
		return "", fmt.Errorf("%s is not a language server: to list language servers, run berth status languageservers", ref)
	}
	return ref.name, nil
}

// languageServerDialer finds the endpoint of a LanguageServer and connects to it.
type languageServerDialer struct {
	app  *app
	to   *connection
	key  client.ObjectKey
	last string // the last endpoint that accepted a connection
	said string // the last message shown to the user, so that it is not repeated
}

// dial waits until it can connect to the server. It tries the last known endpoint first: that needs no manager and, on this machine, no API server.
func (d *languageServerDialer) dial(ctx context.Context) (conn net.Conn, err error) {
	if d.last != "" {
		if conn, err := d.reach(ctx, d.last); err == nil {
			return conn, nil
		}
	}
	err = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		place, err := d.look(ctx)
		if err != nil || place == "" {
			return false, err
		}
		switch conn, err = d.reach(ctx, place); {
		case err == nil:
			d.last, d.said = place, ""
			return true, nil
		case apierrors.IsForbidden(err):
			return false, err
		}
		d.tell(fmt.Sprintf("no response from %s yet (%v); waiting", place, err))
		return false, nil
	})
	return conn, err
}

// reach connects to an endpoint that the method look has returned: the path of a socket, or an https address in the cluster.
func (d *languageServerDialer) reach(ctx context.Context, place string) (net.Conn, error) {
	if strings.HasPrefix(place, "https://") {
		return d.to.multiplexer(ctx, d.key.Namespace, place)
	}
	return control.Connect(ctx, place)
}

// look returns the endpoint to which clients connect. If there is none yet, it returns an empty string and prints why.
func (d *languageServerDialer) look(ctx context.Context) (string, error) {
	server := &v1alpha1.LanguageServer{}
	err := d.to.client.Get(ctx, d.key, server)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("languageserver/%s %w in namespace %q: to list all, run berth status languageservers -A; "+
			"create it, or use another name (%w)", d.key.Name, errMissing, d.key.Namespace, bridge.ErrGone)
	case meta.IsNoMatchError(err):
		return "", err
	case err != nil && d.last != "":
		// The API server is unavailable. A socket on this machine may be available again before the API server is.
		d.tell(fmt.Sprintf("the API server does not respond (%v); trying the last known endpoint", err))
		return d.last, nil
	case err != nil:
		return "", fmt.Errorf("read languageserver/%s: %w", d.key.Name, err)
	}
	place, ok := strings.CutPrefix(server.Status.Endpoint, "unix://")
	switch {
	case server.Spec.State == v1alpha1.StateStopped:
		d.tell(fmt.Sprintf("languageserver/%s is stopped; waiting. To start it, run: berth start languageserver/%s", d.key.Name, d.key.Name))
		return "", nil
	case server.Status.Endpoint == "":
		d.tell(fmt.Sprintf("languageserver/%s has no endpoint yet; waiting for the manager", d.key.Name))
		return "", nil
	case strings.HasPrefix(place, "https://"):
		return place, nil
	case !ok:
		return "", errors.New("languageserver/" + d.key.Name + " has an endpoint that this version of berth does not support: " + clean(server.Status.Endpoint))
	}
	return place, nil
}

func (d *languageServerDialer) tell(text string) {
	if text != d.said {
		d.said = text
		d.app.say("%s", text)
	}
}
