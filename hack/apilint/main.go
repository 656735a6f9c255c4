// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command apilint runs kube-api-linter, the linter of the Kubernetes API conventions, on the packages in its arguments.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/analysis/multichecker"
	"sigs.k8s.io/kube-api-linter/pkg/analysis/registry"
	"sigs.k8s.io/kube-api-linter/pkg/config"
	_ "sigs.k8s.io/kube-api-linter/pkg/registration"
)

// disabled are the linters that do not run, with the reason.
var disabled = map[string]string{
	"optionalfields":    "it requires a pointer for each optional field whose zero value is not excluded; in this API an empty text, a 0 and an empty object mean unset, which each comment states",
	"requiredfields":    "it requires omitempty for required fields; without it, an object that a Go program creates is refused with the name of the missing field",
	"defaults":          "it requires the marker +default instead of +kubebuilder:default; all other markers of validation begin with +kubebuilder, too",
	"preferredmarkers":  "as defaults",
	"nophase":           "a Plan has phases, which its user defines; no field contains the phase of an object in the sense of the conventions",
	"nomaps":            "the resources of a Pod are maps, as in the core API",
	"arrayofstruct":     "the elements of envFrom are a union, of which a CEL rule requires one member",
	"nonpointerstructs": "spec is required although no field of it is: an object without a spec is a mistake",
	"conditions":        "it requires the tags of strategic merge patches, which custom resources do not support",
}

func main() {
	var names []string
	for name := range disabled {
		names = append(names, name)
	}
	analyzers, err := registry.DefaultRegistry().InitializeLinters(config.Linters{Disable: names}, config.LintersConfig{})
	if err != nil {
		fmt.Fprintln(os.Stderr, "apilint:", err)
		os.Exit(1)
	}
	multichecker.Main(analyzers...)
}
