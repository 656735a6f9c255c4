// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command typecheck checks that all packages compile for other systems. It type-checks without building, which takes a tenth of the time.
//
//	go run ./hack/typecheck darwin/arm64 linux/arm64
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	for _, system := range os.Args[1:] {
		if err := check(system); err != nil {
			fmt.Fprintf(os.Stderr, "typecheck: %s: %v\n", system, err)
			os.Exit(1)
		}
	}
}

// check loads all packages with their tests and dependencies from source for that system, and returns an error if any of them does not type-check.
func check(system string) error {
	goos, goarch, named := strings.Cut(system, "/")
	if !named {
		return errors.New("expected GOOS/GOARCH")
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax |
			packages.NeedTypesInfo | packages.NeedTypesSizes | packages.NeedModule,
		Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		Tests: true,
	}, "./...")
	if err != nil {
		return fmt.Errorf("load packages: %w", err)
	}
	if n := packages.PrintErrors(loaded); n > 0 {
		return fmt.Errorf("%d errors, see above", n)
	}
	return nil
}
