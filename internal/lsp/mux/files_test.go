// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/watch"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestGlobs(t *testing.T) {
	for pattern, paths := range map[string]struct{ match, differ []string }{
		`"**/*.go"`:       {[]string{"/w/a.go", "/w/b/c.go", "/other/x.go"}, []string{"/w/a.gox", "/x/a.go"}},
		`"**/*.{go,mod}"`: {[]string{"/w/a.go", "/w/go.mod"}, []string{"/w/go.sum", "/w/a.{go,mod}"}},
		`"go.work"`:       {[]string{"/w/go.work"}, []string{"/w/b/go.work"}},
		`"*/b?.[ch]"`:     {[]string{"/w/a/bb.c", "/w/a/bä.h"}, []string{"/w/a/b/.c", "/w/a/bb.d"}},
		`"**/[!a]"`:       {[]string{"/w/b"}, []string{"/w/a"}},
		`"/w/**"`:         {[]string{"/w/a/b"}, []string{"/other/a"}},
		`"a.b+c"`:         {[]string{"/w/a.b+c"}, []string{"/w/aXb+c", "/w/a.bbc"}},
		`"{open"`:         {nil, []string{"/w/{open"}},
		`{"baseUri":"file:///b%20ase","pattern":"**/*.ts"}`:            {[]string{"/b ase/x.ts"}, []string{"/w/x.ts"}},
		`{"baseUri":{"uri":"file:///base/","name":"b"},"pattern":"*"}`: {[]string{"/base/x"}, []string{"/base/x/y"}},
		`{"baseUri":"http://x","pattern":"*"}`:                         {nil, []string{"/x"}},
		`5`:                                                            {nil, []string{"/w/5"}},
	} {
		g := NewWithT(t)
		list := globs(json.RawMessage(`{"watchers":[{"globPattern":`+pattern+`}]}`), []string{"/w", "/other/"})
		matches := func(path string) bool {
			for _, one := range list {
				if one.paths.MatchString(path) {
					return true
				}
			}
			return false
		}
		for _, path := range paths.match {
			g.Expect(matches(path)).To(BeTrue(), "%s and %s", pattern, path)
		}
		for _, path := range paths.differ {
			g.Expect(matches(path)).To(BeFalse(), "%s and %s", pattern, path)
		}
	}
}

func TestFiles_ChangesOnDiskReachServer(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(nil)
	c := b.join()
	b.Expect(disk.started).To(Equal(1), "also for a server that has not asked")
	disk.register(s)
	disk.change(watch.Change{Path: "/w/a.go", Kind: watch.Changed}, watch.Change{Path: "/w/b.go", Kind: watch.Deleted},
		watch.Change{Path: "/w/c.txt", Kind: watch.Created}, watch.Change{Path: "/w/go.mod", Kind: watch.Deleted})
	b.Expect(string(b.await(s.peer, "workspace/didChangeWatchedFiles", 1).Params)).To(MatchJSON(`{"changes":[{"uri":"file:///w/a.go","type":2},{"uri":"file:///w/go.mod","type":3}]}`))

	var many []watch.Change
	for i := range maxFileChanges + 1 {
		many = append(many, watch.Change{Path: fmt.Sprintf("/w/%d.go", i), Kind: watch.Created})
	}
	disk.change(many...)
	b.await(s.peer, "workspace/didChangeWatchedFiles", 3)

	b.crash(s)
	disk.change(many...) // no server: nothing happens
	s = b.serve(nil)
	disk.register(s)
	disk.change(many[:1]...)
	b.await(s.peer, "workspace/didChangeWatchedFiles", 1)
	c.sync()
	b.Expect(disk.started).To(Equal(1))
	b.Expect(disk.folders).To(Equal([]string{"/w"}))
	b.mux.SetFolders([]string{"/w", "/v"})
	b.Expect(disk.folders).To(Equal([]string{"/w", "/v"}))
	config := lsp.Config{Folders: []string{"/x"}}
	b.mux.Configure(config)
	b.Expect(disk.folders).To(Equal([]string{"/x"}), "the next server reads these folders")
	b.mux.Quit("the test is over")
	b.Expect(disk.closed).To(Equal(1))
}

// fakeDisk is a watcher of files that the test controls.
type fakeDisk struct {
	b               *fixture
	fail            error
	started, closed int
	registered      int // calls of register
	since           time.Time
	folders         []string
	report          func(watch.Report)
	requested       atomic.Int64
}

func newDisk(t *testing.T) (*fixture, *fakeDisk) {
	disk := &fakeDisk{}
	disk.b = newFixture(t, lsp.Config{Folders: []string{"/w"}}, func(o *Options) {
		o.Watch = func(folders []string, since time.Time, report func(watch.Report)) (Files, error) {
			if disk.fail != nil {
				return nil, disk.fail
			}
			disk.started++
			disk.folders, disk.since, disk.report = folders, since, report
			return disk, nil
		}
	})
	return disk.b, disk
}

func (d *fakeDisk) SetFolders(folders []string) { d.folders = folders }
func (d *fakeDisk) Sync() int64                 { return d.requested.Add(1) }
func (d *fakeDisk) Close()                      { d.closed++ }

// change reports changes, without those that a Sync waits for.
func (d *fakeDisk) change(changes ...watch.Change) { d.report(watch.Report{Changes: changes}) }

// register makes a server register patterns, and waits for the answer.
func (d *fakeDisk) register(s *fakeServer) {
	d.b.t.Helper()
	d.registered++
	d.b.requestFromServer(s, fmt.Sprintf(`"files%d"`, d.registered), "client/registerCapability", `{"registrations":[{"id":"files","method":"workspace/didChangeWatchedFiles",
		"registerOptions":{"watchers":[{"globPattern":"**/*.go","kind":3},{"globPattern":"**/*.mod"}]}}]}`)
	d.b.report() // the lock is free when the registration is complete
}

// inquire sends an inquiry, and returns when the inquiry waits for a report of the watcher.
func (d *fakeDisk) inquire(c *fakeClient, id string) {
	d.b.t.Helper()
	before := d.requested.Load()
	c.inquire(id, "file:///w/a.go", "")
	d.b.Eventually(d.requested.Load).Should(Equal(before + 1))
	c.sync()
}

func TestInquiry_WaitsForChangesOnDisk(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.publishFor("file:///w/a.go", "1", "newest")
			s.answer(m, "[]")
		}
	})
	c := b.join()
	disk.register(s)
	b.Expect(disk.since).To(Equal(b.clock.Now()), "when the server was attached")
	c.openDocument("file:///w/a.go", "one")
	disk.inquire(c, "1")
	disk.change(watch.Change{Path: "/w/other.go", Kind: watch.Changed})
	c.sync()
	b.Expect(s.received(symbols)).To(BeEmpty(), "this report does not contain everything")
	disk.report(watch.Report{Changes: []watch.Change{{Path: "/w/b.go", Kind: watch.Changed}}, Synced: 1})
	d, text := c.diagnosis("1", quietAfterOthers)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(text).To(ContainSubstring("newest"))
	var order []string
	for _, method := range s.methods() {
		if method == methodWatched || method == symbols {
			order = append(order, method)
		}
	}
	b.Expect(order).To(Equal([]string{methodWatched, methodWatched, symbols}), "the server learns of the changes first")

	disk.inquire(c, "2")
	d, _ = c.diagnosis("2", time.Second)
	b.Expect(d.Settled).To(BeFalse())
	b.Expect(d.Reason).To(ContainSubstring("files on disk have not been read in time"))
	disk.report(watch.Report{Synced: 2})
	c.sync()
	b.Expect(s.received(symbols)).To(HaveLen(1), "answered already")

	disk.inquire(c, "3")
	c.notify("$/cancelRequest", `{"id":3}`)
	b.Expect(c.awaitAnswer("3").Error.Code).To(Equal(wire.CodeRequestCancelled))
	disk.inquire(c, "4")
	b.Expect(c.conn.Close()).To(Succeed())
	b.Eventually(func() int { b.mux.lock(); defer b.mux.unlock(); return len(b.mux.inquiries) }).Should(BeZero())
	disk.report(watch.Report{Synced: 4})
	b.Expect(s.received(symbols)).To(HaveLen(1))
}

func TestInquiry_IsNotSettledIfChangesOnDiskMayBeMissed(t *testing.T) {
	for name, test := range map[string]struct {
		fail   error
		unseen string
	}{
		"the watcher has reached a limit": {nil, "no more folders can be watched"},
		"the watcher cannot start":        {errors.New("no instance of inotify"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			b, disk := newDisk(t)
			unseen := test.unseen
			disk.fail = test.fail
			s := b.serve(func(s *fakeServer, m message) {
				if m.Method == symbols {
					s.publishFor("file:///w/a.go", "1", "x")
					s.answer(m, "[]")
				}
			})
			c := b.join()
			disk.register(s)
			c.openDocument("file:///w/a.go", "one")
			ask := func(id string) lsp.Diagnosis {
				c.inquire(id, "file:///w/a.go", "")
				c.sync()
				if disk.report != nil {
					disk.report(watch.Report{Synced: disk.requested.Load(), Unseen: unseen})
				}
				d, _ := c.diagnosis(id, quiet)
				return d
			}
			reason := test.unseen
			if test.fail != nil {
				reason = test.fail.Error()
			}
			d := ask("1")
			b.Expect(d.Settled).To(BeFalse())
			b.Expect(d.Reason).To(ContainSubstring(reason))
			b.Expect(string(d.Diagnostics)).To(ContainSubstring("x"))
			b.Expect(b.report().Unhealthy).To(Equal(lsp.ReasonFilesUnseen))
			b.Expect(b.report().Message).To(ContainSubstring(reason))
			b.Expect(b.report().Restart).To(BeFalse())
			unseen, disk.fail = "", nil
			d = ask("2")
			b.Expect(d.Settled).To(BeTrue(), d.Reason)
			b.Expect(b.report().Unhealthy).To(BeEmpty())
		})
	}
}

// A server may ignore a folder that does not exist when it starts.
func TestFiles_AServerAddsFoldersThatAreFoundLater(t *testing.T) {
	const capable = `{"capabilities":{"workspace":{"workspaceFolders":{"supported":true,"changeNotifications":true}}}}`
	const method = "workspace/didChangeWorkspaceFolders"
	b, disk := newDisk(t)
	s := b.attach("", nil)
	initialize := b.await(s.peer, "initialize", 1)
	b.mux.SetFolders([]string{"/w", "/v"})
	b.mux.filesRead(watch.Report{Found: []string{"/v", "/other"}})
	s.answer(initialize, capable)
	b.await(s.peer, method, 3)
	disk.register(s)
	disk.report(watch.Report{Found: []string{"/other"}})
	disk.report(watch.Report{Found: []string{"/v"}, Changes: []watch.Change{{Path: "/w/a.go", Kind: watch.Created}}})
	b.await(s.peer, methodWatched, 1)
	var events []string
	for _, m := range s.received(method) {
		events = append(events, string(m.Params))
	}
	removed, added := `{"event":{"added":[],"removed":[{"uri":"file:///v","name":"v"}]}}`, `{"event":{"added":[{"uri":"file:///v","name":"v"}],"removed":[]}}`
	b.Expect(events).To(Equal([]string{added, removed, added, removed, added}))

	b.crash(s)
	s = b.serve(nil)
	disk.register(s)
	disk.report(watch.Report{Found: []string{"/v"}, Changes: []watch.Change{{Path: "/w/a.go", Kind: watch.Created}}})
	b.await(s.peer, methodWatched, 1)
	b.Expect(s.received(method)).To(BeEmpty(), "the server does not accept changes of its folders")
}

func TestFiles_ChangesDuringAStartReachTheServer(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(nil)
	disk.register(s)
	b.crash(s)
	var initialize message
	asked := make(chan message, 1)
	s = b.attach("", func(_ *fakeServer, m message) {
		if m.Method == "initialize" {
			asked <- m
		}
	})
	b.Eventually(asked).Should(Receive(&initialize))
	disk.change(watch.Change{Path: "/w/a.go", Kind: watch.Changed})
	b.Expect(s.received(methodWatched)).To(BeEmpty())
	s.answer(initialize, fakeResult)
	b.Expect(string(b.await(s.peer, methodWatched, 1).Params)).To(ContainSubstring("/w/a.go"))

	b.crash(s)
	s = b.attach("", func(_ *fakeServer, m message) {
		if m.Method == "initialize" {
			asked <- m
		}
	})
	b.Eventually(asked).Should(Receive(&initialize))
	disk.change(slices.Repeat([]watch.Change{{Path: "/w/a.go", Kind: watch.Changed}}, maxPending)...)
	disk.change(watch.Change{Path: "/w/a.go", Kind: watch.Changed})
	s.answer(initialize, fakeResult)
	b.Eventually(func() string { return b.report().Message }).Should(ContainSubstring("files changed while the language server started"))
	b.crash(s)
	b.serve(nil)
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "the next server has read the files")
}

// A server registers patterns some time after it has answered initialize. Changes wait until then, and so do the inquiries after them.
func TestFiles_ChangesWaitForThePatternsOfTheServer(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(nil)
	c := b.join()
	c.openDocument("file:///w/a.go", "one")
	disk.inquire(c, "1")
	disk.report(watch.Report{Changes: []watch.Change{{Path: "/w/b.go", Kind: watch.Changed}}, Synced: 1})
	c.sync()
	b.Expect(append(s.received(methodWatched), s.received(symbols)...)).To(BeEmpty())
	disk.register(s)
	b.await(s.peer, symbols, 1)
	b.Expect(string(b.await(s.peer, methodWatched, 1).Params)).To(MatchJSON(`{"changes":[{"uri":"file:///w/b.go","type":2}]}`))

	b.crash(s)
	s = b.attach(fakeResult, func(s *fakeServer, m message) {
		if m.Method == "initialized" {
			s.send(`{"jsonrpc":"2.0","id":"p","method":"window/workDoneProgress/create","params":{"token":"t"}}`)
		}
	})
	b.mux.lock()
	b.mux.features.registrations = nil // as if the first server had registered none
	b.mux.files.globs = nil
	b.mux.unlock()
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	disk.change(watch.Change{Path: "/w/b.go", Kind: watch.Changed})
	b.tick(progressGrace - time.Second)
	b.Expect(s.received(methodWatched)).To(BeEmpty())
	b.tick(time.Second)
	b.await(s.peer, methodWatched, 1)
}

// clangd registers no patterns, and reads changed headers only when it receives the text of a document again.
func TestFiles_AServerWithoutPatternsReceivesTheTextsAgain(t *testing.T) {
	const uri, other = "file:///w/a.go", "file:///w/other.c"
	b, disk := newDisk(t)
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.answer(m, "[]")
		}
	})
	c := b.join()
	c.openDocument(uri, "one")
	s.publishFor(uri, "1", "of the first header")
	c.shows(uri, "of the first header")
	c.openDocument(other, "other")
	b.await(s.peer, "textDocument/didOpen", 2)
	b.Eventually(func() bool { b.tick(settleTime); return b.report().Indexed }).Should(BeTrue())
	b.tick(forgetful)

	disk.change(watch.Change{Path: "/w/a.h", Kind: watch.Changed})
	b.Expect(string(b.await(s.peer, methodWatched, 1).Params)).To(MatchJSON(`{"changes":[{"uri":"file:///w/a.h","type":2}]}`))
	b.await(s.peer, "textDocument/didChange", 2)
	b.Expect(string(s.received("textDocument/didChange")[0].Params)).To(MatchJSON(`{"textDocument":{"uri":"file:///w/a.go","version":3},"contentChanges":[{"text":"one"}]}`))
	disk.inquire(c, "1")
	disk.report(watch.Report{Synced: 1})
	b.await(s.peer, symbols, 1)
	b.tick(quietAfterOthers)
	b.Expect(c.answers("1")).To(BeEmpty(), "the server has sent no diagnostics after the change of the header")
	s.publishFor(uri, "3", "of the second header")
	d, text := c.diagnosis("1", quiet)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(d.Version).To(BeEquivalentTo(7))
	b.Expect(text).To(ContainSubstring("of the second header"))

	b.tick(forgetful)
	disk.change(watch.Change{Path: "/w/data.bin", Kind: watch.Changed}, watch.Change{Path: "/w/other.c", Kind: watch.Changed})
	b.await(s.peer, methodWatched, 2)
	b.Expect(s.received("textDocument/didChange")).To(HaveLen(2), "no client has asked, and a client that saves a document notifies the server itself")
	disk.change(watch.Change{Path: "/w/data.bin", Kind: watch.Changed})
	disk.inquire(c, "2")
	disk.report(watch.Report{Synced: 2})
	b.await(s.peer, "textDocument/didClose", 1)
	b.await(s.peer, "textDocument/didOpen", 3)
	b.Expect(s.received("textDocument/didChange")).To(HaveLen(2), "the second of two changes may escape the server, unless the document is opened again")
	s.publishFor(uri, "null", "closed")
	s.publishFor(uri, "5", "of the newest file")
	d, text = c.diagnosis("2", quiet)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(text).To(ContainSubstring("of the newest file"))
	b.Expect(shown(c, uri)).NotTo(ContainElement(ContainSubstring("closed")))
}

// A server that has found its folder missing may never recover: gopls stays at "initialization failed", and Node cannot determine the working directory.
func TestFiles_AServerWhoseFolderWasAwayIsRestarted(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.publishFor("file:///w/a.go", "1", "x")
			s.answer(m, "[]")
		}
	})
	c := b.join()
	disk.register(s)
	c.openDocument("file:///w/a.go", "one")
	ask := func(id string, report watch.Report) lsp.Diagnosis {
		disk.inquire(c, id)
		report.Synced = disk.requested.Load()
		disk.report(report)
		d, _ := c.diagnosis(id, quiet)
		return d
	}
	b.Expect(ask("1", watch.Report{Absent: []string{"/v"}, Installed: []string{"/v/node_modules"}}).Settled).To(BeTrue(), "another folder")
	b.Expect(b.report().Unhealthy).To(BeEmpty())
	d := ask("2", watch.Report{Absent: []string{"/w"}})
	b.Expect(d.Settled).To(BeFalse())
	b.Expect(d.Reason).To(Equal("/w does not exist"))
	b.Expect(b.report()).To(And(HaveField("Unhealthy", lsp.ReasonFilesUnseen), HaveField("Restart", false), HaveField("Message", ContainSubstring("/w does not exist"))))

	disk.inquire(c, "3")
	disk.report(watch.Report{Found: []string{"/w"}, Synced: disk.requested.Load()})
	b.expectRestart(lsp.ReasonFolderReplaced)
	c.sync()
	b.Expect(c.answers("3")).To(BeEmpty(), "the next server answers it")
	b.stopForRestart(s)
	b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.publishFor("file:///w/a.go", "1", "of the new folder")
			s.answer(m, "[]")
		}
	})
	d, text := c.diagnosis("3", quiet)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(text).To(ContainSubstring("of the new folder"))
	b.Expect(b.report().Unhealthy).To(BeEmpty())
}

// A server that is not told about installed packages may still report them as missing.
func TestInquiry_IsNotSettledAfterPackagesWereInstalled(t *testing.T) {
	b, disk := newDisk(t)
	answer := func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.publishFor("file:///w/a.go", "1", "x")
			s.answer(m, "[]")
		}
	}
	s := b.serve(answer)
	c := b.join()
	disk.register(s)
	c.openDocument("file:///w/a.go", "one")
	ask := func(id string, installed ...string) lsp.Diagnosis {
		disk.inquire(c, id)
		disk.report(watch.Report{Installed: installed, Synced: disk.requested.Load()})
		d, _ := c.diagnosis(id, quiet)
		return d
	}
	b.Expect(ask("1").Settled).To(BeTrue())
	b.Expect(ask("2", "/w/node_modules").Reason).To(HavePrefix("the packages in /w/node_modules have changed"))
	b.Expect(ask("3").Settled).To(BeFalse(), "until a restart")
	b.stopForRestart(s)
	b.serve(answer)
	d := ask("4")
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
}

func TestSync_IsAnsweredWhenTheServerKnowsTheFiles(t *testing.T) {
	b, disk := newDisk(t)
	s := b.serve(nil)
	c := b.join()
	disk.register(s)
	c.request("1", lsp.MethodSync, "{}")
	b.Eventually(disk.requested.Load).Should(Equal(int64(1)))
	disk.change(watch.Change{Path: "/w/a.go", Kind: watch.Changed})
	c.sync()
	b.Expect(c.answers("1")).To(BeEmpty(), "this report does not contain everything")
	disk.report(watch.Report{Changes: []watch.Change{{Path: "/w/b.go", Kind: watch.Changed}}, Synced: 1})
	b.Expect(string(c.awaitAnswer("1").Result)).To(Equal("null"))
	c.request("2", "textDocument/hover", hoverParams("file:///w/a.go"))
	b.await(s.peer, "textDocument/hover", 1)
	b.Expect(s.received(methodWatched)).To(HaveLen(2))

	c.request("3", lsp.MethodSync, "{}")
	b.Eventually(disk.requested.Load).Should(Equal(int64(2)))
	c.sync()
	b.tick(syncPatience - time.Millisecond)
	b.Expect(c.answers("3")).To(BeEmpty())
	b.tick(time.Millisecond)
	c.awaitAnswer("3")

	without := newFixture(t, lsp.Config{})
	without.serve(nil)
	c = without.join()
	c.request("1", lsp.MethodSync, "{}")
	c.awaitAnswer("1")
}

// Diagnostics of a file can be caused by the unsaved text of another file in an editor.
func TestInquiry_NamesTheClientsWhoseUnsavedTextTheServerHas(t *testing.T) {
	const uri, other = "file:///w/a.go", "file:///w/n.go"
	b := newFixture(t, lsp.Config{})
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.publishFor(uri, "1", "x")
			s.answer(m, "[]")
		}
	})
	agent, editor := b.join(), b.connect()
	editor.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"clientInfo":{"name":"Neo\u001bvim 0.12; ignore"},"capabilities":{}}}`)
	editor.awaitAnswer(`"init"`)
	editor.notify("initialized", "{}")
	agent.openDocument(uri, "one")
	editor.openDocument(uri, "one")
	editor.openDocument(other, "saved")
	b.await(s.peer, "textDocument/didOpen", 2)
	ask := func(id string) []string {
		agent.inquire(id, uri, "")
		d, _ := agent.diagnosis(id, quietAfterOthers)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		return d.BasedOnUnsaved
	}
	b.Expect(ask("1")).To(BeEmpty())
	editor.changeDocument(other, 8, "unsaved")
	b.await(s.peer, "textDocument/didChange", 1)
	b.Expect(ask("2")).To(Equal([]string{"Neovim0.12ignore"}))
	editor.notify("textDocument/didSave", fmt.Sprintf(`{"textDocument":{"uri":%q}}`, other))
	b.await(s.peer, "textDocument/didSave", 1)
	b.Expect(ask("3")).To(BeEmpty())
}
