// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

func TestValidUID_RejectsUnsafeNames(t *testing.T) {
	g := NewWithT(t)
	for _, good := range []types.UID{"a", "0b8a2d3e-7c1e-4a52-9c55-0d1f2a3b4c5d", "A_b.c"} {
		g.Expect(runtime.ValidUID(good)).To(BeTrue(), string(good))
	}
	for _, bad := range []types.UID{"", ".", "..", ".hidden", "a/b", "a b", "a\x00", types.UID(strings.Repeat("a", 129))} {
		g.Expect(runtime.ValidUID(bad)).To(BeFalse(), string(bad))
	}
}
