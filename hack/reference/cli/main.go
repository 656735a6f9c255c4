// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cli writes a reference of all commands of berth in Markdown to standard output.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/berth-dev/berth/internal/cli"
)

func main() {
	// Some default values of flags contain the home directory. The reference shows ~ instead.
	if err := errors.Join(os.Setenv("HOME", "~"), os.Unsetenv("XDG_STATE_HOME")); err != nil {
		fmt.Fprintln(os.Stderr, "cli:", err)
		os.Exit(1)
	}
	root := cli.Command()
	root.DisableAutoGenTag = true // the tag contains the date
	fmt.Println("# Commands of berth\n\nGenerated from the help texts by `make reference`. The exit code is 0 after success, 1 after a failure, 2 if the command line is invalid, 3 if a named object does not exist, 4 if the timeout of --wait has passed, and 130 after a signal.")
	if err := write(os.Stdout, root); err != nil {
		fmt.Fprintln(os.Stderr, "cli:", err)
		os.Exit(1)
	}
}

// write writes the section of a command, and then those of its subcommands.
func write(to io.Writer, command *cobra.Command) error {
	if command.Hidden || command.IsAdditionalHelpTopicCommand() {
		return nil
	}
	var page strings.Builder
	fmt.Fprintln(to)
	if err := doc.GenMarkdownCustom(command, &page, link); err != nil {
		return fmt.Errorf("describe %s: %w", command.CommandPath(), err)
	}
	if _, err := io.WriteString(to, page.String()); err != nil {
		return err
	}
	for _, sub := range command.Commands() {
		if err := write(to, sub); err != nil {
			return err
		}
	}
	return nil
}

// link returns the anchor of a command on the page. cobra passes the name of a file, such as berth_plan_status.md.
func link(file string) string {
	return "#" + strings.ReplaceAll(strings.TrimSuffix(file, ".md"), "_", "-")
}
