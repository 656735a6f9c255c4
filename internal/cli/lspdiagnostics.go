// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cli/code"
)

// diagnosticsFlags are the flags of berth lsp diagnostics.
type diagnosticsFlags struct {
	connectionFlags
	server, format string
	timeout        time.Duration
}

func (a *app) lspDiagnosticsCommand() *cobra.Command {
	flags := &diagnosticsFlags{}
	command := &cobra.Command{
		Use:   "diagnostics FILE...",
		Short: "Print the errors and warnings of files, for their content on disk",
		Long: "Diagnostics asks the LanguageServer whose workspace contains a file and whose language is that of the file. It waits until the server has processed exactly\n" +
			"the content on disk. If that is not certain within the timeout, it prints what the server has reported and why that may be old, and exits with code 4.\n" +
			"It exits with code 0 even if it finds errors.",
		Example: "  # After an edit\n" +
			"  berth lsp diagnostics main.go\n\n" +
			"  # For a script\n" +
			"  berth lsp diagnostics src/*.ts -o json",
		Args: needs(cobra.RangeArgs(1, maxFiles)),
		RunE: func(command *cobra.Command, args []string) error {
			if flags.format != "" && flags.format != "json" && flags.format != "yaml" {
				return &usageError{fmt.Errorf("-o %q is not supported: use json or yaml", flags.format), command.UsageString()}
			}
			return a.lspDiagnostics(command.Context(), flags, args)
		},
	}
	flags.add(command)
	command.Flags().StringVar(&flags.server, "language-server", "", "name of the LanguageServer; default: by file")
	command.Flags().StringVarP(&flags.format, "output", "o", "", "output format: json or yaml")
	command.Flags().DurationVar(&flags.timeout, "timeout", codeWait, "how long to wait, in whole seconds")
	return command
}

func (a *app) lspDiagnostics(ctx context.Context, flags *diagnosticsFlags, files []string) error {
	input := diagnosticsInput{Server: flags.server, patience: patience{max(1, int(flags.timeout.Seconds()))}}
	for _, file := range files {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); err != nil {
			return err
		}
		input.Files = append(input.Files, path)
	}
	to, err := a.connect(&flags.connectionFlags)
	if err != nil {
		return err
	}
	tools := &toolContext{app: a, to: to, code: &languageClients{}}
	defer tools.code.close()
	reports, err := tools.diagnostics(ctx, input)
	if err != nil {
		return err
	}
	if flags.format != "" {
		err = a.printValue(flags.format, map[string]any{"files": reports})
	} else {
		err = a.printDiagnostics(reports)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, report := range reports {
		if !report.Settled {
			errs = append(errs, fmt.Errorf("%w: the diagnostics of %s may be old: %s", errTimeout, shortPath(report.File), report.Reason))
		}
	}
	return errors.Join(errs...)
}

// printDiagnostics prints diagnostics in the form that editors and CI systems recognize: FILE:LINE:COLUMN: SEVERITY: MESSAGE.
func (a *app) printDiagnostics(reports []code.Report) error {
	for _, report := range reports {
		if others := report.BasedOnUnsaved; len(others) > 0 {
			a.say("the diagnostics of %s may be caused by unsaved text of other files in: %s", shortPath(report.File), clean(strings.Join(others, ", ")))
		}
		for _, d := range report.Diagnostics {
			origin := strings.TrimSpace(d.Source + " " + d.Code)
			if origin != "" {
				origin = " [" + origin + "]"
			}
			_, err := fmt.Fprintf(a.out, "%s:%d:%d: %s: %s%s\n", clean(shortPath(report.File)), d.Line, d.Column, d.Severity, clean(d.Message), clean(origin))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// shortPath returns a path relative to the current directory if the path is below it.
func shortPath(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(dir, path)
	if err != nil || strings.HasPrefix(short, "..") {
		return path
	}
	return short
}
