// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"slices"
	"strings"
)

// managerOnly are the variables of the manager that no workload inherits: KUBECONFIG names the manager's credentials; the others identify the terminal that the
// manager was started in, which is not the terminal of the workload.
var managerOnly = map[string]bool{"KUBECONFIG": true, "TMUX": true, "TMUX_PANE": true, "STY": true}

// managerPrefixes are prefixes of more variables that no workload inherits: Berth's own settings, and the address of the API server that a Pod receives.
var managerPrefixes = []string{"BERTH_", "KUBERNETES_"}

// inheritedEnvironment returns the entries of the manager's environment that a program on this machine inherits. A spec may set any of the removed variables
// for its program. Every program that a manager starts for an object gets its environment from here: processes, exec probes and language servers.
func inheritedEnvironment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		if name, _, ok := strings.Cut(entry, "="); ok && name != "" && !ofManager(name) {
			kept = append(kept, entry)
		}
	}
	return kept
}

func ofManager(variable string) bool {
	return managerOnly[variable] || slices.ContainsFunc(managerPrefixes, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
}
