// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

const (
	foldersChanged = "workspace/didChangeWorkspaceFolders"
	foldersResult  = `{"capabilities":{"workspace":{"workspaceFolders":{"supported":true,"changeNotifications":"folders"}}}}`
)

func TestFolders_AreChangedWhileTheServerRuns(t *testing.T) {
	b := newFixture(t, lsp.Config{Folders: []string{"/a", "/b"}})
	s := b.attach(foldersResult, nil)
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	b.Expect(b.report().FoldersChange).To(BeTrue())
	b.mux.SetFolders([]string{"/a", "/c", "/d"})
	b.Expect(string(b.await(s.peer, foldersChanged, 1).Params)).To(MatchJSON(
		`{"event":{"added":[{"uri":"file:///c","name":"c"},{"uri":"file:///d","name":"d"}],"removed":[{"uri":"file:///b","name":"b"}]}}`))
	b.Expect(b.report().StartFolders).To(Equal([]string{"/a", "/b"}))
	b.Expect(b.report().Folders).To(Equal([]string{"/a", "/c", "/d"}))
	b.mux.SetFolders([]string{"/a", "/c", "/d"})
	s.send(`{"jsonrpc":"2.0","id":"f","method":"workspace/workspaceFolders"}`)
	b.Eventually(func() []message { return s.answers(`"f"`) }).Should(HaveLen(1))
	b.Expect(string(s.answers(`"f"`)[0].Result)).To(ContainSubstring("file:///d"))
	b.Expect(s.received(foldersChanged)).To(HaveLen(1), "nothing has changed")

	next := func() *fakeServer { b.stopForRestart(s); return b.attach(foldersResult, nil) }()
	b.Expect(string(b.await(next.peer, "initialize", 1).Params)).To(ContainSubstring("file:///d"))
	b.Expect(b.report().StartFolders).To(Equal([]string{"/a", "/c", "/d"}))
}

func TestFolders_WaitForTheStartOfTheServer(t *testing.T) {
	b := newFixture(t, lsp.Config{Folders: []string{"/a"}})
	s := b.attach("", nil)
	asked := b.await(s.peer, "initialize", 1)
	b.mux.SetFolders([]string{"/a", "/b"})
	s.answer(asked, foldersResult)
	b.await(s.peer, foldersChanged, 1)
}

func TestFolders_OfServersThatKeepThem(t *testing.T) {
	for _, result := range []string{
		fakeResult, `{"capabilities":{"workspace":{"workspaceFolders":{"supported":true}}}}`, `{"capabilities":{"workspace":{"workspaceFolders":{"changeNotifications":true}}}}`,
	} {
		b := newFixture(t, lsp.Config{Folders: []string{"/a"}})
		s := b.attach(result, nil)
		c := b.join()
		b.mux.SetFolders([]string{"/a", "/b"})
		c.sync()
		c.notify("workspace/other", "{}")
		b.await(s.peer, "workspace/other", 1)
		b.Expect(s.received(foldersChanged)).To(BeEmpty())
		b.Expect(b.report().FoldersChange).To(BeFalse())
	}
}
