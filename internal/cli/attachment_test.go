// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/runtime"
)

// remoteTerminal is a remote terminal that echoes its input until it is closed or the connection is lost.
type remoteTerminal struct {
	shown *io.PipeReader
	typed *io.PipeWriter
	log   output
	after error // returned by Receive at the end
}

func newRemoteTerminal(after error) *remoteTerminal {
	shown, typed := io.Pipe()
	return &remoteTerminal{shown: shown, typed: typed, after: after}
}

func (t *remoteTerminal) Write(keys []byte) (int, error) {
	_, _ = t.log.Write(keys)
	return t.typed.Write(keys)
}
func (t *remoteTerminal) Resize(runtime.Terminal) error { return nil }
func (t *remoteTerminal) Close() error                  { return t.typed.Close() }
func (t *remoteTerminal) Receive(out io.Writer, _ func(runtime.Terminal)) error {
	_, _ = io.Copy(out, t.shown)
	return t.after
}

func newAttachment(f *fixture, in io.Reader) *attachment {
	a := f.app.plain()
	a.in = in
	instance, _ := parseReference("instance/agent")
	return &attachment{
		app: a, attachOptions: attachOptions{leaveKey: detachKey{']'}}, flags: &connectionFlags{}, ref: instance, window: window{-1, -1},
		shown: newTerminalModes(a.raw), patience: 50 * time.Millisecond,
	}
}

func TestAttach_EndsAfterThePipedInput(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	conn := newRemoteTerminal(nil)
	began := time.Now()
	left, err := newAttachment(f, strings.NewReader("hello")).stay(t.Context(), conn)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeTrue())
	g.Expect(f.out.String()).To(Equal("hello"), "all output is copied")
	g.Expect(time.Since(began)).To(BeNumerically(">=", settledFor))
}

func TestAttach_GivesUpWithoutAManager(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	in, keys := io.Pipe()
	conn := newRemoteTerminal(fmt.Errorf("%w: reset", endpoint.ErrLost))
	g.Expect(conn.Close()).To(Succeed())
	_, err := newAttachment(f, in).stay(t.Context(), conn)
	g.Expect(err).To(MatchError(And(ContainSubstring("the connection was lost: reset"), ContainSubstring("reconnecting failed for 50ms"))))
	g.Expect(strings.Count(f.err.String(), "reconnecting…")).To(Equal(1))
	g.Expect(keys.Close()).To(Succeed())
}

func TestAttach_ReconnectsOnlyAfterLostConnection(t *testing.T) {
	for name, end := range map[string]error{"the process ends": nil, "no terminal": &endpoint.EndError{Message: "was started without a terminal"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture()
			in, keys := io.Pipe()
			conn := newRemoteTerminal(end)
			g.Expect(conn.Close()).To(Succeed())
			left, err := newAttachment(f, in).stay(t.Context(), conn)
			g.Expect(left).To(BeFalse())
			if end == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(end))
			}
			g.Expect(f.err.String()).NotTo(ContainSubstring("reconnecting"))
			g.Expect(keys.Close()).To(Succeed())
		})
	}
}

// brokenLine is a connection that is lost when something is written to it.
type brokenLine struct {
	*remoteTerminal
	written chan struct{}
}

func (l *brokenLine) Write([]byte) (int, error) {
	close(l.written)
	return 0, io.ErrClosedPipe
}

func (l *brokenLine) Receive(io.Writer, func(runtime.Terminal)) error {
	<-l.written
	return endpoint.ErrLost
}

// Piped input that a lost connection did not accept is sent over the next connection, before later input. What a user types in that moment is dropped, except
// the detach key.
func TestAttach_KeepsPipedInputForNextConnection(t *testing.T) {
	for _, c := range []struct {
		name, keys, received string
		terminal             int
		left                 bool
		lost                 error
	}{
		{"piped", "hello", "hello world", -1, false, endpoint.ErrLost},
		{"typed", "hello", " world", 0, false, endpoint.ErrLost},
		{"detach key", "hello\x1d", "", 0, true, errDetached},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			in, keys := io.Pipe()
			a := newAttachment(newFixture(), in)
			a.window.in, a.input = c.terminal, make(chan input)
			go a.read(t.Context().Done())
			go func() { _, _ = io.WriteString(keys, c.keys) }()
			left, err := a.join(t.Context(), &brokenLine{newRemoteTerminal(nil), make(chan struct{})})
			g.Expect(err).To(MatchError(c.lost))
			g.Expect(left).To(Equal(c.left))
			if left {
				return
			}
			go func() {
				_, _ = io.WriteString(keys, " world")
				_ = keys.Close()
			}()
			next := newRemoteTerminal(nil)
			left, err = a.join(t.Context(), next)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(left).To(BeTrue())
			g.Expect(next.log.String()).To(Equal(c.received))
		})
	}
}

// The end of piped input that was not sent yet ends the next connection, after the input.
func TestAttach_KeepsEndOfPipedInputForNextConnection(t *testing.T) {
	g := NewWithT(t)
	a := newAttachment(newFixture(), strings.NewReader("hello"))
	a.input = make(chan input)
	go a.read(t.Context().Done())
	left, err := a.join(t.Context(), &brokenLine{newRemoteTerminal(nil), make(chan struct{})})
	g.Expect(err).To(MatchError(endpoint.ErrLost))
	g.Expect(left).To(BeFalse())
	next := newRemoteTerminal(nil)
	left, err = a.join(t.Context(), next)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeTrue())
	g.Expect(next.log.String()).To(Equal("hello"))
}

func TestAttach_DistinguishesRecreatedObject(t *testing.T) {
	g := NewWithT(t)
	known := web()
	a := &attachment{uid: known.UID, incarnation: known.Status.Incarnation}
	g.Expect(a.replaced(known)).To(BeFalse())
	g.Expect(a.replaced(web(func(server *v1alpha1.DevServer) { server.Status.Incarnation++ }))).To(BeTrue(), "restarted")
	g.Expect(a.replaced(web(func(server *v1alpha1.DevServer) { server.UID = "uid-new" }))).To(BeTrue(), "recreated, with an incarnation of the same number")
	g.Expect((&attachment{}).replaced(known)).To(BeFalse(), "unknown")
}

func TestAttach_SendsNothingIfReadOnly(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	conn := newRemoteTerminal(nil)
	a := newAttachment(f, strings.NewReader("hello\x1d"))
	a.readOnly = true
	left, err := a.stay(t.Context(), conn)
	g.Expect(err).To(MatchError(errDetached))
	g.Expect(left).To(BeTrue())
	g.Expect(conn.log.String()).To(BeEmpty())
}

// A lone Escape is a key, which may only be held back for a moment; the rest of a longer key may take its time.
func TestAttach_PassesEscapeOn(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	in, keys := io.Pipe()
	conn := newRemoteTerminal(nil)
	ended := make(chan error, 1)
	go func() {
		_, err := newAttachment(f, in).stay(t.Context(), conn)
		ended <- err
	}()
	_, _ = io.WriteString(keys, "\x1b")
	g.Eventually(conn.log.String).Should(Equal("\x1b"))
	_, _ = io.WriteString(keys, "\x1b[93")
	g.Consistently(ended, "100ms").ShouldNot(Receive())
	_, _ = io.WriteString(keys, ";5u")
	g.Eventually(ended).Should(Receive(MatchError(errDetached)))
	g.Expect(conn.log.String()).To(Equal("\x1b"))
	g.Expect(keys.Close()).To(Succeed())
}

// The process neither adapts to a terminal that does not type into it, nor expects answers from it.
func TestAttach_SizesProcessOnlyForTerminalThatTypes(t *testing.T) {
	g := NewWithT(t)
	g.Expect((&attachment{window: window{0, 1}}).sized()).To(BeTrue())
	g.Expect((&attachment{window: window{-1, 1}}).sized()).To(BeFalse(), "piped input")
	g.Expect((&attachment{window: window{0, 1}, attachOptions: attachOptions{readOnly: true}}).sized()).To(BeFalse(), "read-only")
}
