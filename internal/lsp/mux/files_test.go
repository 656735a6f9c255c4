// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/watch"
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
	started := make(chan func([]watch.Change), 10)
	stopped := 0
	b := newFixture(t, lsp.Config{Folders: []string{"/w"}}, func(o *Options) {
		o.Watch = func(folders []string, to func([]watch.Change)) (func(), error) {
			NewWithT(t).Expect(folders).To(Equal([]string{"/w"}))
			started <- to
			return func() { stopped++ }, nil
		}
	})
	s := b.serve(nil)
	c := b.join()
	b.Expect(started).To(BeEmpty(), "the server has not asked")
	register := func(s *fakeServer) {
		b.requestFromServer(s, "1", "client/registerCapability", `{"registrations":[{"id":"files","method":"workspace/didChangeWatchedFiles",
			"registerOptions":{"watchers":[{"globPattern":"**/*.go","kind":3},{"globPattern":"**/*.mod"}]}}]}`)
	}
	register(s)
	var deliver func([]watch.Change)
	b.Eventually(started).Should(Receive(&deliver))
	deliver([]watch.Change{{Path: "/w/a.go", Kind: watch.Changed}, {Path: "/w/b.go", Kind: watch.Deleted}, {Path: "/w/c.txt", Kind: watch.Created}, {Path: "/w/go.mod", Kind: watch.Deleted}, {Path: "/w/pkg", Kind: watch.Deleted, Folder: true}})
	b.Expect(string(b.await(s.peer, "workspace/didChangeWatchedFiles", 1).Params)).To(MatchJSON(`{"changes":[{"uri":"file:///w/a.go","type":2},{"uri":"file:///w/go.mod","type":3},{"uri":"file:///w/pkg","type":3}]}`))

	var many []watch.Change
	for i := range maxFileChanges + 1 {
		many = append(many, watch.Change{Path: fmt.Sprintf("/w/%d.go", i), Kind: watch.Created})
	}
	deliver(many)
	b.await(s.peer, "workspace/didChangeWatchedFiles", 3)

	b.crash(s)
	deliver(many) // no server: nothing happens
	s = b.serve(nil)
	register(s)
	deliver(many[:1])
	b.await(s.peer, "workspace/didChangeWatchedFiles", 1)
	c.sync()
	b.Expect(started).To(BeEmpty(), "the same folders")
	b.mux.Quit("the test is over")
	b.Expect(stopped).To(Equal(1))
}
