// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
)

func TestFlagArguments_RepeatTheFlagsThatWereSet(t *testing.T) {
	g := NewWithT(t)
	flags := &connectionFlags{}
	command := &cobra.Command{}
	flags.add(command)
	ignoreEditorFlags(command)
	g.Expect(command.ParseFlags([]string{"-n", "connect", "--as-group", "a", "--as-group", "b", "--stdio"})).To(Succeed())
	g.Expect(flagArguments(command.Flags())).To(ConsistOf("--namespace=connect", "--as-group=a", "--as-group=b", "--stdio=true"))
}
