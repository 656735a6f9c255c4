// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

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
