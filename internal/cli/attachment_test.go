// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/facts"
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

// countedTerminal is a terminal that counts its input over several connections.
type countedTerminal struct {
	mu     sync.Mutex
	typed  strings.Builder
	ended  bool
	lines  bool // it reads lines, so the end of the input is passed on
	slow   bool // it accepts nothing
	breaks []int
}

// countedLine is a connection to a countedTerminal. It breaks after a number of bytes, of which it acknowledges none.
type countedLine struct {
	*countedTerminal
	states chan endpoint.InputState
	lost   chan struct{}
	left   int
}

func (t *countedTerminal) connect() *countedLine {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &countedLine{countedTerminal: t, states: make(chan endpoint.InputState, 1), lost: make(chan struct{}), left: 1 << 30}
	if len(t.breaks) > 0 {
		l.left, t.breaks = t.breaks[0], t.breaks[1:]
	}
	l.tell()
	return l
}

func (l *countedLine) tell() {
	select {
	case <-l.states:
	default:
	}
	l.states <- endpoint.InputState{Counted: true, Receipt: facts.Receipt{Total: int64(l.typed.Len()), Ended: l.ended, Passed: l.ended && l.lines}}
}

func (l *countedLine) Inputs() <-chan endpoint.InputState { return l.states }
func (l *countedLine) Resize(runtime.Terminal) error      { return nil }

func (l *countedLine) Write(keys []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slow {
		return len(keys), nil
	}
	accepted := keys[:min(len(keys), l.left)]
	l.left -= len(accepted)
	_, _ = l.typed.Write(accepted)
	if l.left == 0 {
		_ = l.hangUp()
		return len(accepted), io.ErrClosedPipe
	}
	l.tell()
	return len(keys), nil
}

func (l *countedLine) EndInput() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.tell()
	return nil
}

func (l *countedLine) hangUp() error {
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
	return nil
}

func (l *countedLine) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hangUp()
}

func (l *countedLine) Receive(io.Writer, func(runtime.Terminal)) error {
	<-l.lost
	return endpoint.ErrLost
}

// numbered returns text in which each piece occurs once.
func numbered(length int) string {
	var text strings.Builder
	for i := 0; text.Len() < length; i++ {
		fmt.Fprintf(&text, "%d\n", i)
	}
	return text.String()[:length]
}

// Each byte of counted input is typed once, in order, wherever the connections break, and although no acknowledgement of the last bytes arrived.
func TestAttach_TypesEachPipedByteOnce(t *testing.T) {
	for _, lines := range []bool{true, false} {
		t.Run(fmt.Sprint("reads lines: ", lines), func(t *testing.T) {
			g := NewWithT(t)
			text := numbered(1 << 20)
			remote := &countedTerminal{lines: lines, breaks: []int{1, 5000, 100_000, 4096, 300_001}}
			a := newAttachment(newFixture(), strings.NewReader(text))
			a.counted.Stream, a.input = "name", make(chan input)
			go a.read(t.Context().Done())
			for range 5 {
				_, err := a.join(t.Context(), remote.connect())
				g.Expect(err).To(MatchError(endpoint.ErrLost))
				g.Expect(a.counted.Resume).To(BeTrue())
				g.Expect(len(a.counted.kept)).To(BeNumerically("<=", maxKept+4096))
			}
			last, done := remote.connect(), make(chan struct{})
			go func() {
				defer close(done)
				left, err := a.join(t.Context(), last)
				if lines {
					g.Expect(err).To(MatchError(endpoint.ErrLost), "until the process ends")
				} else {
					g.Expect(left).To(BeTrue())
				}
			}()
			if lines {
				g.Consistently(done, 2*settledFor).ShouldNot(BeClosed(), "attach keeps showing the output")
				g.Expect(last.Close()).To(Succeed())
			}
			g.Eventually(done, "20s").Should(BeClosed())
			g.Expect(strings.Compare(remote.typed.String(), text)).To(BeZero(), "%d of %d bytes", remote.typed.Len(), len(text))
			g.Expect(remote.ended).To(BeTrue())
			g.Expect(a.counted.kept).To(BeEmpty())
			g.Expect(a.atEnd).To(Equal(!lines))
		})
	}
}

// A process that reads nothing keeps attach from reading its input.
func TestAttach_ReadsNoMoreThanItKeeps(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	text := strings.NewReader(numbered(1 << 20))
	remote := &countedTerminal{slow: true}
	a := newAttachment(f, text)
	a.counted.Stream, a.input = "name", make(chan input)
	go a.read(t.Context().Done())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.join(ctx, remote.connect())
		ended <- err
	}()
	g.Consistently(ended, "500ms").ShouldNot(Receive())
	cancel()
	g.Eventually(ended).Should(Receive(MatchError(context.Canceled)))
	g.Expect(len(a.counted.kept)).To(And(BeNumerically(">=", maxKept), BeNumerically("<=", maxKept+4096)))
	a.tellUnreceived()
	g.Expect(f.err.String()).To(ContainSubstring("%d bytes were read from the input that the process may not have received", len(a.counted.kept)))
}

// Counted input is not sent to a manager or a process that does not know it, and a manager that cannot count gets it as before.
func TestAttach_SendsCountedInputOnlyWhereItIsKnown(t *testing.T) {
	g := NewWithT(t)
	resumed := countedInput{CountedInput: endpoint.CountedInput{Stream: "name", Resume: true}, received: 3, kept: []byte("lo")}
	for name, conn := range map[string]line{
		"an older manager":  newRemoteTerminal(nil),
		"a count that fell": (&countedTerminal{}).connect(),
		"no count": &countedLine{states: func() chan endpoint.InputState {
			states := make(chan endpoint.InputState, 1)
			states <- endpoint.InputState{}
			return states
		}(), countedTerminal: &countedTerminal{}, lost: make(chan struct{}), left: 1},
	} {
		a := newAttachment(newFixture(), nil)
		a.counted = resumed
		_, err := a.join(t.Context(), conn)
		g.Expect(err).To(MatchError(errUnknownInput), name)
		g.Expect(a.counted.kept).To(HaveLen(2), name)
	}
	remote := &countedTerminal{}
	l := remote.connect()
	<-l.states
	l.states <- endpoint.InputState{}
	a := newAttachment(newFixture(), strings.NewReader("hello"))
	a.counted.Stream, a.input = "name", make(chan input)
	go a.read(t.Context().Done())
	left, err := a.join(t.Context(), l)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeTrue())
	g.Expect(remote.typed.String()).To(Equal("hello"))
	g.Expect(remote.ended).To(BeFalse())
}
