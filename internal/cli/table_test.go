// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestBoard_RedrawsInPlace(t *testing.T) {
	g := NewWithT(t)
	out := &output{}
	b := newBoard(out, false)
	b.size = func() (int, int) { return 40, 5 }
	now := time.Now()
	rows := []row{{name: "devserver/b", ready: "True", created: now}, {name: "devserver/a", ready: "False", address: strings.Repeat("x", 80), created: now}}
	b.show(rows, now)
	first := out.String()
	g.Expect(strings.Split(first, "\n")).To(HaveLen(4))
	g.Expect(first).To(And(HavePrefix("NAME"), ContainSubstring("…"), MatchRegexp("(?s)devserver/a.*devserver/b")))

	b.show(rows, now)
	g.Expect(out.String()).To(Equal(first), "without a change nothing is written")

	rows[1].ready = "False"
	b.show(rows, now)
	g.Expect(strings.TrimPrefix(out.String(), first)).To(HavePrefix("\x1b[3A"), "redrawn in place")

	for i := range 20 {
		rows = append(rows, row{name: fmt.Sprint("devserver/c", i), created: now})
	}
	b.show(rows, now)
	g.Expect(b.drawn).To(BeNumerically("<=", 4), "at most the height of the terminal")
	g.Expect(out.String()).To(ContainSubstring("more lines"))
}

func TestClean_RemovesControlCharacters(t *testing.T) {
	NewWithT(t).Expect(clean("a\x1b[31mb\x1b]0;title\x07c\nd\x7f")).To(Equal("ab\ufffd]0;title\ufffdc d\ufffd"))
}

func TestRow_DeletedObjectIsNotReady(t *testing.T) {
	g := NewWithT(t)
	now := metav1.Now()
	server := web(func(server *v1alpha1.DevServer) { server.DeletionTimestamp = &now })
	row := rowOf(server)
	g.Expect(row.ready).To(Equal("False"))
	g.Expect(row.reason).To(Equal(v1alpha1.ReasonDeleting))
}
