// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	. "github.com/onsi/gomega"
)

const file = "file:///w/a.go"

// summarize formats notifications as one line.
func summarize(list []Notification) string {
	words := make([]string, 0, len(list))
	for _, n := range list {
		var p struct {
			TextDocument   struct{ Text string }
			ContentChanges []event
		}
		if err := json.Unmarshal(n.Params, &p); err != nil {
			panic(err)
		}
		word := strings.TrimPrefix(n.Method, "textDocument/did")
		switch word {
		case "Open":
			word += " " + p.TextDocument.Text
		case "Change":
			for _, change := range p.ContentChanges {
				if word += " "; change.Range != nil {
					word += "part "
				}
				word += change.Text
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// testSet is a set with short helper methods for tests.
type testSet struct {
	*Set
	*WithT
}

func newTestSet(t *testing.T, limits Limits) testSet {
	return testSet{NewSet(limits), NewWithT(t)}
}

func (d testSet) open(session Session, uri, text string) string {
	list, err := d.Open(session, uri, "go", 1, text)
	d.Expect(err).NotTo(HaveOccurred())
	return summarize(list)
}

func (d testSet) change(session Session, uri string, changes ...string) string {
	list, err := d.Change(session, uri, 2, rawMessages(changes...))
	d.Expect(err).NotTo(HaveOccurred())
	return summarize(list)
}

func (d testSet) view(session Session) string { return summarize(d.View(session, file)) }

func (d testSet) published(version int64) ([]Session, bool) { return d.Published(file, &version) }

func TestSet_SharesOneOpenDocument(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.Expect(d.open(1, file, "text")).To(Equal("Open text"))
	d.Expect(d.open(2, file, strings.Clone("text"))).To(BeEmpty())
	d.Expect(d.open(3, "file:///w/%61.go", strings.Clone("text"))).To(BeEmpty())

	documents, bytes, switches := d.Stats()
	d.Expect([]int64{int64(documents), bytes, switches}).To(Equal([]int64{1, 4, 0}))
	views := d.documents[file].views
	d.Expect(unsafe.StringData(views[2].text)).To(BeIdenticalTo(unsafe.StringData(views[1].text)))
	d.Expect(unsafe.StringData(views[3].text)).To(BeIdenticalTo(unsafe.StringData(views[1].text)))
	d.Expect(d.URIs()).To(Equal([]string{file}))

	d.Expect(summarize(d.Close(1, file))).To(BeEmpty())
	d.Expect(summarize(d.Close(1, file))).To(BeEmpty())
	d.Expect(d.Holds(1, file)).To(BeFalse())
	d.Expect(summarize(d.Drop(2))).To(BeEmpty())
	d.Expect(summarize(d.Drop(3))).To(Equal("Close"))
	d.Expect(summarize(d.Drop(3))).To(BeEmpty())
	d.Expect(d.open(1, file, "again")).To(Equal("Open again"))
}

func TestView_SwitchesServerToTextOfClient(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "ab")
	d.Expect(d.change(1, file, edit(0, 2, 0, 2, "c"))).To(Equal("Change part c"), "a single client: the change is forwarded unchanged")
	d.Expect(d.view(1)).To(BeEmpty())

	d.Expect(d.open(2, file, "ab")).To(Equal("Change ab"))
	d.Expect(d.view(2)).To(BeEmpty())
	d.Expect(d.view(1)).To(Equal("Change abc"))
	d.Expect(d.view(2)).To(Equal("Change ab"))
	d.Expect(d.change(2, file, edit(0, 0, 0, 0, "x"))).To(Equal("Change part x"), "the server has the text of client 2")
	d.Expect(d.change(1, file, edit(0, 0, 0, 0, "y"))).To(Equal("Change yabc"), "the server has the text of another client")

	d.Expect(d.change(2, file, `{"text":"yabc"}`)).To(BeEmpty(), "the server already has this text")
	_, bytes, switches := d.Stats()
	d.Expect(bytes).To(BeEquivalentTo(4))
	d.Expect(switches).To(BeEquivalentTo(4))
	d.Expect(d.change(1, file, edit(0, 9, 0, 9, "z"))).To(Equal("Change yabcz"), "an invalid position: the whole text is sent")
	d.Expect(d.change(1, file)).To(BeEmpty())
}

// TestView_HidesUnsavedTextOfOtherClients checks that a view covers all documents, because a response may depend on more than the document of the request.
func TestView_HidesUnsavedTextOfOtherClients(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	d.open(2, file, "a")
	d.Expect(d.view(3)).To(BeEmpty(), "the open text is the saved one")
	d.change(1, file, `{"text":"dirty"}`)
	d.Expect(summarize(d.View(2, "file:///w/other.go"))).To(Equal("Change a"))
	d.Expect(summarize(d.View(3, "file:///w/other.go"))).To(BeEmpty())
	d.Expect(d.view(1)).To(Equal("Change dirty"))
	d.Expect(summarize(d.View(3, "file:///w/other.go"))).To(Equal("Close"))
	d.Expect(summarize(d.View(3, ""))).To(BeEmpty())
	d.Expect(d.view(1)).To(Equal("Open dirty"))

	d.Expect(summarize(d.Save(1, file, nil))).To(Equal("Save"))
	d.Expect(d.view(3)).To(BeEmpty())
	d.Expect(summarize(d.Save(2, file, nil))).To(Equal("Change a, Save"), "the server must have the saved text before didSave")
	d.Expect(d.view(1)).To(Equal("Change dirty"))
	d.Expect(summarize(d.Save(1, file, nil))).To(Equal("Save"))
	d.Expect(d.view(3)).To(BeEmpty())

	d.view(2)
	d.Expect(d.view(3)).To(Equal("Close"))
	d.Expect(summarize(d.Drop(1))).To(BeEmpty())
	d.Expect(summarize(d.Drop(2))).To(BeEmpty(), "the document is already closed")
}

func TestView_SwitchesRequestedDocumentFirst(t *testing.T) {
	d := newTestSet(t, Limits{})
	for _, name := range []string{"a", "b", "c"} {
		d.open(1, "file:///w/"+name, "text of "+name)
		d.open(2, "file:///w/"+name, "other")
	}
	d.Expect(summarize(d.View(1, "file:///w/c"))).To(HavePrefix("Change text of c, "))
}

// TestDrop_RemovesTextOfDisconnectedClient checks that the text of a disconnected client does not stay at the server.
func TestDrop_RemovesTextOfDisconnectedClient(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	d.open(2, file, "a")
	d.open(3, file, "a")
	d.change(1, file, `{"text":"dirty"}`)
	d.Expect(summarize(d.Close(2, file))).To(BeEmpty())
	d.Expect(summarize(d.Drop(1))).To(Equal("Change a"))
	d.Expect(d.view(3)).To(BeEmpty())
}

func TestPublished_ReturnsSessionsWithThatText(t *testing.T) {
	d := newTestSet(t, Limits{})
	_, all := d.Published(file, nil)
	d.Expect(all).To(BeTrue(), "no client has it open")

	d.open(1, file, "a")
	d.open(2, file, "a")
	_, all = d.published(1)
	d.Expect(all).To(BeTrue(), "the open text is the saved one")

	d.change(1, file, `{"text":"b"}`)
	sessions, all := d.published(1)
	d.Expect(sessions, all).To(Equal([]Session{2}))
	sessions, _ = d.published(2)
	d.Expect(sessions).To(Equal([]Session{1}))
	sessions, _ = d.Published(file, nil)
	d.Expect(sessions).To(Equal([]Session{1}))
	sessions, all = d.published(7)
	d.Expect(sessions, all).To(BeEmpty())

	d.view(2)
	sessions, all = d.Published(file, nil)
	d.Expect(sessions, all).To(BeEmpty(), "without a version the diagnostics may belong to either text")

	d.change(2, file, `{"text":"b"}`)
	sessions, _ = d.Published(file, nil)
	d.Expect(sessions).To(BeEmpty(), "the server may still send the diagnostics of the earlier text")
	d.SetTime(time.Unix(1000, 0))
	d.Recheck()
	sessions, all = d.Published(file, nil)
	d.Expect(sessions).To(Equal([]Session{1, 2}))
	d.Expect(all).To(BeFalse(), "clients without the document see only diagnostics of the saved text")
	version, ok := d.ClientVersion(2, file)
	d.Expect(ok).To(BeTrue())
	d.Expect(version).To(BeEquivalentTo(2))
	_, ok = d.ClientVersion(3, file)
	d.Expect(ok).To(BeFalse())

	d.Detach()
	sessions, all = d.Published(file, nil)
	d.Expect(sessions, all).To(BeEmpty())
}

func TestReplay_ReopensDocumentsAfterRestart(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	d.open(2, file, "b")
	d.view(2)
	d.Detach()
	d.Expect(d.change(2, file, edit(0, 1, 0, 1, "c"))).To(BeEmpty())
	d.Expect(d.open(1, "file:///w/b.go", "new")).To(BeEmpty())
	d.Expect(d.view(1)).To(BeEmpty())
	d.Expect(summarize(d.Save(2, file, nil))).To(BeEmpty())
	d.Expect(summarize(d.Replay(nil))).To(Equal("Open bc, Open new"), "the same view as before, with the current texts")
	d.Expect(d.view(1)).To(Equal("Change a"))

	d.Detach()
	d.Expect(summarize(d.Close(1, file))).To(BeEmpty())
	d.Expect(summarize(d.Replay(func(uri string) bool { return uri == file }))).To(Equal("Open new"))
	d.Expect(d.change(2, file, `{"text":"poison"}`)).To(BeEmpty())
	d.Expect(d.view(2)).To(BeEmpty())
	d.Expect(summarize(d.Save(2, file, nil))).To(BeEmpty())
	d.Expect(d.open(3, file, "x")).To(BeEmpty())
	d.Expect(summarize(d.Replay(nil))).To(Equal("Open x, Open new"))
}

func TestOpen_SecondOpenReplacesText(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	d.Expect(d.open(1, file, "b")).To(Equal("Change b"))
	d.Expect(summarize(d.Close(1, file))).To(Equal("Close"))
}

func TestChange_FailsForUnopenedDocument(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	for _, session := range []Session{2, 1} {
		list, err := d.Change(session, map[Session]string{1: "file:///w/b.go", 2: file}[session], 2, rawMessages(`{"text":"b"}`))
		d.Expect(err).To(MatchError(errNotOpen))
		d.Expect(list).To(BeEmpty())
	}
	d.Expect(summarize(d.Save(2, file, nil))).To(BeEmpty())
}

// TestChange_InvalidEditClosesDocument checks that a document is closed after an invalid change, because the text of the client is no longer known.
func TestChange_InvalidEditClosesDocument(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.open(1, file, "a")
	list, err := d.Change(1, file, 2, rawMessages(`{"text":"b"}`, `{}`))
	d.Expect(err).To(MatchError(errChange))
	d.Expect(summarize(list)).To(Equal("Close"))
	d.Expect(d.Holds(1, file)).To(BeFalse())
}

func TestLimits_AreEnforced(t *testing.T) {
	uri := func(i int) string { return fmt.Sprintf("file:///w/%d.go", i) }
	refused := func(d testSet, list []Notification, err error, says string) {
		d.Expect(err).To(MatchError(errLimit))
		d.Expect(err).To(MatchError(ContainSubstring(says)))
	}
	t.Run("documents", func(t *testing.T) {
		d := newTestSet(t, Limits{Documents: 2})
		d.open(1, uri(1), "")
		d.open(1, uri(2), "")
		list, err := d.Open(1, uri(3), "go", 1, "")
		refused(d, list, err, "a client may have 2 documents open")
		d.open(2, uri(3), "")
		d.Close(1, uri(1))
		d.open(1, uri(3), "")
	})
	t.Run("bytes of one client", func(t *testing.T) {
		d := newTestSet(t, Limits{Bytes: 10})
		d.open(1, uri(1), "123456")
		list, err := d.Open(1, uri(2), "go", 1, "12345")
		refused(d, list, err, "a client may have 10 bytes of text open, and this text would raise the total to 11")
		d.open(1, uri(2), "1234")
		list, err = d.Change(1, uri(1), 2, rawMessages(edit(0, 0, 0, 0, "x")))
		refused(d, list, err, "10 bytes")
		d.Expect(summarize(list)).To(Equal("Close"))
		d.open(1, uri(1), "123456")
		d.change(1, uri(1), `{"text":""}`)
		d.open(1, uri(3), "123456")
	})
	t.Run("bytes of all clients", func(t *testing.T) {
		d := newTestSet(t, Limits{Bytes: 10, Total: 15})
		d.open(1, uri(1), "1234567890")
		list, err := d.Open(2, uri(2), "go", 1, "123456")
		refused(d, list, err, "all clients together may have 15 bytes of text open, and 10 bytes are")
		d.open(2, uri(2), "12345")
		d.Drop(1)
		d.open(3, uri(3), "1234567890")
		d.Drop(2)
		d.Drop(3)
		_, bytes, _ := d.Stats()
		d.Expect(bytes).To(BeZero())
	})
}

func TestNotifications_HaveExpectedParams(t *testing.T) {
	d := newTestSet(t, Limits{})
	list, err := d.Open(1, file, "go", 9, "<a>\n")
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(string(list[0].Params)).To(Equal(`{"textDocument":{"uri":"file:///w/a.go","languageId":"go","version":1,"text":"<a>\n"}}`))
	list, err = d.Change(1, file, 10, rawMessages(edit(0, 0, 0, 3, "")))
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(string(list[0].Params)).To(Equal(`{"textDocument":{"uri":"file:///w/a.go","version":2},` +
		`"contentChanges":[{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":3}},"text":""}]}`))
	text := "\n"
	d.Expect(string(d.Save(1, file, &text)[0].Params)).To(Equal(`{"textDocument":{"uri":"file:///w/a.go"},"text":"\n"}`))
	d.Expect(string(d.Close(1, file)[0].Params)).To(Equal(`{"textDocument":{"uri":"file:///w/a.go"}}`))
	d.Expect(d.open(1, file, "")).To(Equal("Open "))
}

// TestView_DoesNotAllocateWithoutChange checks that View does not allocate, because it is called for every request.
func TestView_DoesNotAllocateWithoutChange(t *testing.T) {
	d := newTestSet(t, Limits{})
	for i := range 100 {
		d.open(1, fmt.Sprintf("file:///w/%d.go", i), "text")
	}
	d.change(1, "file:///w/1.go", `{"text":"dirty"}`)
	d.Expect(testing.AllocsPerRun(100, func() { d.View(1, "file:///w/1.go") })).To(BeZero())
}

func BenchmarkChange(b *testing.B) {
	set := NewSet(Limits{})
	if _, err := set.Open(1, file, "go", 1, strings.Repeat("0123456789012345678901234567890\n", 1000)); err != nil {
		b.Fatal(err)
	}
	changes := rawMessages(edit(900, 3, 900, 4, "x"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := set.Change(1, file, 1, changes); err != nil {
			b.Fatal(err)
		}
		changes[0][len(changes[0])-3] ^= 1 // another letter, so that the text changes
	}
}

func TestLimit_LowerLimitKeepsOpenDocuments(t *testing.T) {
	d := newTestSet(t, Limits{Documents: 2})
	d.open(1, file, "text")
	d.open(1, file+"2", "text")
	d.Limit(Limits{Documents: 1})
	_, err := d.Open(1, file+"3", "go", 1, "text")
	d.Expect(err).To(MatchError(errLimit))
	d.Expect(d.URIs()).To(HaveLen(2), "open documents stay open")
	d.Limit(Limits{})
	d.open(1, file+"3", "text")
}

func TestOpened_HasTheVersionsOfTheSession(t *testing.T) {
	d := newTestSet(t, Limits{})
	d.Detach()
	_, err := d.Open(1, "file:///w/b", "go", 0, "b")
	d.Expect(err).NotTo(HaveOccurred())
	d.open(1, "file:///w/a", "old")
	d.change(1, "file:///w/a", `{"text":"new"}`)
	d.open(2, "file:///w/c", "of another session")
	list := d.Opened(1)
	d.Expect(summarize(list)).To(Equal("Open new, Open b"))
	d.Expect(string(list[0].Params)).To(ContainSubstring(`"version":2`))
	d.Expect(string(list[1].Params)).To(ContainSubstring(`"version":0`))
	d.Expect(d.Opened(3)).To(BeEmpty())
}

// An agent opens a file with another language identifier than an editor. Each session has the document in its own language, also after the other one has closed it.
func TestOpen_EachSessionHasItsLanguage(t *testing.T) {
	d := newTestSet(t, Limits{})
	languages := func(told []Notification, err error) (all []string) {
		d.Expect(err).NotTo(HaveOccurred())
		for _, n := range told {
			var p struct{ TextDocument struct{ LanguageID string } }
			d.Expect(json.Unmarshal(n.Params, &p)).To(Succeed())
			all = append(all, strings.TrimPrefix(n.Method, "textDocument/did")+p.TextDocument.LanguageID)
		}
		return all
	}
	d.Expect(languages(d.Open(1, file, "css", 1, "a"))).To(Equal([]string{"Opencss"}))
	d.Expect(languages(d.Open(2, file, "less", 1, "a"))).To(Equal([]string{"Close", "Openless"}))
	version := int64(2)
	sessions, all := d.Published(file, &version)
	d.Expect(all).To(BeFalse())
	d.Expect(sessions).To(Equal([]Session{2}), "the diagnostics of another language are not those of session 1")
	d.Expect(languages(d.View(1, file), nil)).To(Equal([]string{"Close", "Opencss"}))
	d.Expect(languages(d.View(1, file), nil)).To(BeEmpty())
	d.Expect(languages(d.Restore(), nil)).To(Equal([]string{"Close", "Openless"}))
	d.Expect(languages(d.Close(2, file), nil)).To(Equal([]string{"Close", "Opencss"}))
	d.Expect(languages(d.Opened(1), nil)).To(Equal([]string{"Opencss"}))
	d.Expect(languages(d.Replay(nil), nil)).To(Equal([]string{"Opencss"}))
	d.Expect(languages(d.Close(1, file), nil)).To(Equal([]string{"Close"}))
}
