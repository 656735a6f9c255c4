// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package perobject

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestMap_KeepsValueUntilForget(t *testing.T) {
	g := NewWithT(t)
	var m Map[int]
	g.Expect(m.Get("a")).To(BeNil())
	*m.Keep("a") = 7
	value, done := m.Use("a")
	g.Expect(*value).To(Equal(7))
	done()
	g.Expect(m.Get("a")).To(HaveValue(Equal(7)), "the end of a use does not drop a value that is kept")
	m.Forget("a")
	m.Forget("b")
	g.Expect(m.Len()).To(BeZero())
	g.Expect(*m.Keep("a")).To(BeZero(), "the object has come back from another host")
}

func TestMap_ForgetIsFinal(t *testing.T) {
	g := NewWithT(t)
	var m Map[int]
	m.Keep("a")
	value, done := m.Use("a")
	m.Forget("a")
	g.Expect(m.Get("a")).To(BeIdenticalTo(value), "the value still has a user")
	_, late := m.Use("a")
	done()
	done()
	g.Expect(m.Len()).To(Equal(1), "the second user has not called done")
	late()
	g.Expect(m.Len()).To(BeZero())

	_, late = m.Use("a")
	late()
	g.Expect(m.Len()).To(BeZero(), "a use after Forget leaves nothing behind")
}
