// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheFolderHasToBeOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("BERTH_CLUSTER", "/")
	_, err := open()
	g.Expect(err).To(MatchError(ContainSubstring("BERTH_CLUSTER")))
	t.Setenv("BERTH_CLUSTER", t.TempDir())
	c, err := open()
	if err == nil { // a long temporary folder is refused, as sockets would not fit
		g.Expect(c.down(t.Context())).NotTo(Succeed(), "a folder of somebody else is not removed")
		g.Expect(c.dir).To(BeADirectory())
	}
}
