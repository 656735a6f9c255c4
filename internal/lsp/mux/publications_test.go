// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPublications_KeepEmptyOnesOnlyForOpenDocuments(t *testing.T) {
	g := NewWithT(t)
	p := publications{}
	publish := func(list string, open bool) {
		p.keep(&publication{uri: "file:///a.go", diagnostics: json.RawMessage(list)}, open)
	}
	publish(`[{}]`, false)
	g.Expect(p).To(HaveLen(1))
	publish(`[]`, false)
	g.Expect(p).To(BeEmpty(), "no client needs them, and a server publishes them for every file of a workspace")
	publish(`[]`, true)
	g.Expect(p).To(HaveLen(1), "a client may get them later")
}

func TestPublish_BoundsDocumentsThatTheServerPublishes(t *testing.T) {
	g := NewWithT(t)
	m := newMux(Options{})
	b := &backend{out: newQueue(0), flight: newFlight(), work: map[string]*work{}}
	m.server = b
	b.pull.offers([]byte("{}"), byMarker)
	for i := range maxPublications + 10 {
		m.publish(b, fmt.Appendf(nil, `{"uri":"file:///%d","diagnostics":[]}`, i))
	}
	g.Expect(b.pull.published).To(HaveLen(maxPublications))
}
