// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/cli/project"
)

func (a *app) initCommand() *cobra.Command {
	var clients []string
	var yes bool
	command := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Set up a project for Berth and coding agents",
		Long: "Init detects what a project is (package.json, go.mod, pyproject.toml, requirements.txt, manage.py, Cargo.toml), and proposes objects for its dev server\n" +
			"and language servers. It shows the files, asks, and then writes them: berth.yaml with the objects, the configuration of MCP clients that starts\n" +
			"berth mcp, the hooks with which coding agents report to Berth what they do, and a section of AGENTS.md that tells agents to use Berth. Existing files are\n" +
			"kept; init only adds what they lack. It changes no file outside the directory.\n" +
			"Init follows no symbolic links in the directory, and names those that it finds. Init needs no API server.",
		Example: "  # Show the proposals for the current directory, and write them after a confirmation\n" +
			"  berth init\n\n" +
			"  # Write the configuration of Claude Code and Codex without asking\n" +
			"  berth init --clients claude,codex --yes",
		Args: needs(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return a.initProject(dir, clients, yes)
		},
	}
	command.Flags().StringSliceVar(&clients, "clients", project.Clients, "coding agents and MCP clients to configure: "+strings.Join(project.Clients, ", "))
	command.Flags().BoolVarP(&yes, "yes", "y", false, "write the files without asking")
	return command
}

func (a *app) initProject(dir string, clients []string, yes bool) error {
	found, err := project.Detect(dir)
	if err != nil {
		return err
	}
	files, err := found.Files(clients)
	if err != nil {
		return err
	}
	for _, note := range found.Notes {
		a.say("note: %s", clean(note))
	}
	if len(found.Servers)+len(found.Languages) == 0 {
		a.say("note: no dev server and no language server was detected in %s", clean(found.Dir))
	}
	writes := a.preview(files)
	if writes == 0 {
		a.say("nothing to write: %s is already set up", clean(found.Dir))
		return nil
	}
	if !yes && !a.confirm(fmt.Sprintf("Write these %d files to %s?", writes, clean(found.Dir))) {
		return errors.New("nothing was written: to write the files without asking, use --yes")
	}
	if err := found.Write(files); err != nil {
		return fmt.Errorf("write the files: %w", err)
	}
	next := ""
	if slices.ContainsFunc(files, func(file project.File) bool { return file.Path == project.ManifestFile && file.Skipped == "" }) {
		next = "; next: berth up --detach, then kubectl apply -f " + project.ManifestFile // the user has seen what it contains
	}
	a.say("wrote %d files%s", writes, next)
	if slices.ContainsFunc(files, func(file project.File) bool { return file.Path == project.CodexHooks && file.Skipped == "" }) {
		a.say("note: Codex runs the hooks in %s only after you have trusted them: it asks at its next start in this project", project.CodexHooks)
	}
	return nil
}

// preview shows files and returns how many of them would be written. Their lines are indented, so that the content of a file cannot look like the next file.
func (a *app) preview(files []project.File) (writes int) {
	for _, file := range files {
		if file.Skipped != "" {
			_, _ = fmt.Fprintf(a.out, "=== %s (not written: %s)\n", file.Path, clean(file.Skipped))
			continue
		}
		what := "new file"
		if file.Exists {
			what = "changed file"
		}
		_, _ = fmt.Fprintf(a.out, "=== %s (%s)\n%s\n", file.Path, what, strings.Join(indented(strings.Split(strings.TrimRight(file.Text, "\n"), "\n")), "\n"))
		writes++
	}
	return writes
}

// confirm asks a question on standard error and reports whether the user answers yes.
func (a *app) confirm(question string) bool {
	_, _ = fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(a.in).ReadString('\n') // without input, the answer is no
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
