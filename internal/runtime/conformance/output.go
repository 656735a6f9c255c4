// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
	"github.com/berth-dev/berth/test/reuseport"
)

func (s *suite) openLog(uid types.UID) runtime.Log {
	s.Helper()
	log, err := s.Runtime.Capabilities().Logs.OpenLog(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred())
	s.Cleanup(func() { _ = log.Close() })
	return log
}

// output returns the whole content of a log.
func (s *suite) output(log runtime.Log) string {
	s.Helper()
	first, end, err := log.Bounds()
	s.Expect(err).NotTo(HaveOccurred())
	data := make([]byte, end-first)
	_, err = log.ReadAt(data, first)
	s.Expect(err).To(Or(BeNil(), MatchError(io.EOF)))
	return string(data)
}

func (s *suite) awaitOutput(uid types.UID, text string) string {
	s.Helper()
	s.awaitPhaseNot(uid, facts.Starting)
	if s.LogSnapshot {
		var out string
		s.Eventually(func(g Gomega) {
			log, err := s.Runtime.Capabilities().Logs.OpenLog(s.ctx, uid)
			g.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = log.Close() }()
			out = s.output(log)
			g.Expect(out).To(ContainSubstring(text))
		}).WithTimeout(Timeout).WithPolling(100 * time.Millisecond).Should(Succeed())
		return out
	}
	log := s.openLog(uid)
	ctx, cancel := context.WithTimeout(s.ctx, Timeout)
	defer cancel()
	for {
		// Bounds is called before the read, so that output that is written in between either is read now or ends the wait.
		_, end, err := log.Bounds()
		s.Expect(err).NotTo(HaveOccurred())
		out := s.output(log)
		if strings.Contains(out, text) {
			return out
		}
		s.Expect(log.Wait(ctx, end)).To(Succeed(), "waiting for %q after %q", text, out)
	}
}

func (s *suite) awaitPhaseNot(uid types.UID, phase facts.Phase) {
	s.Helper()
	s.await(uid, "other than "+string(phase), func(i facts.Incarnation) bool { return i.Phase != phase })
}

func testEnvironment(s *suite) {
	s.Setenv("BERTH_SECRET_OF_THE_MANAGER", "hidden")
	s.Setenv("INHERITED", "yes")
	for _, credentials := range []string{"KUBECONFIG", "KUBERNETES_SERVICE_HOST"} {
		s.Setenv(credentials, "of the manager")
	}
	wanted := map[string]string{
		"BERTH_SECRET_OF_THE_MANAGER": "", "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "", "KUBERNETES_PORT": "of the spec", "INHERITED": "yes",
		"GIVEN": "last", "GOMAXPROCS": os.Getenv("GOMAXPROCS"),
	}
	if s.Container {
		wanted["INHERITED"], wanted["GOMAXPROCS"] = "", ""
		delete(wanted, "KUBERNETES_SERVICE_HOST") // set by the kubelet for its cluster, and not secret
	}
	for name, want := range wanted {
		uid := newUID()
		p := s.process(uid, 1, "env", name)
		p.Env = []string{"GIVEN=first", "GIVEN=last", "KUBERNETES_PORT=of the spec"}
		s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
		s.awaitPhase(uid, facts.Exited)
		s.Expect(s.output(s.openLog(uid))).To(Equal(name + "=" + want + "\n"))
	}

	dir, err := filepath.EvalSymlinks(s.TempDir())
	s.Expect(err).NotTo(HaveOccurred())
	uid := newUID()
	p := s.process(uid, 1, "where")
	p.Dir = dir
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.awaitPhase(uid, facts.Exited)
	s.Expect(s.output(s.openLog(uid))).To(Equal(dir + "\n"))

	uid = s.start("stdin")
	s.awaitPhase(uid, facts.Exited)
	s.Expect(s.output(s.openLog(uid))).To(Equal("stdin open\n"))
}

func testLogCursors(s *suite) {
	uid := newUID()
	_, err := s.Runtime.Capabilities().Logs.OpenLog(s.ctx, uid)
	s.Expect(err).To(MatchError(runtime.ErrNotFound))
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 1, "env", "ONE"))).To(Succeed())
	s.awaitPhase(uid, facts.Exited)
	log := s.openLog(uid)
	_, cursor, err := log.Bounds()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.Runtime.Start(s.ctx, s.process(uid, 2, "env", "TWO"))).To(Succeed())
	s.awaitPhase(uid, facts.Exited)
	rest := make([]byte, 100)
	if s.LogSnapshot {
		s.Expect(s.output(log)).To(Equal("ONE=\n"))
		log = s.openLog(uid)
		_, err = log.ReadAt(rest, cursor)
		s.Expect(err).To(MatchError(io.ErrUnexpectedEOF), "the output of the first incarnation is no longer available")
		s.Expect(s.output(log)).To(Equal("TWO=\n"))
		return
	}
	n, err := log.ReadAt(rest, cursor)
	s.Expect(err).To(MatchError(io.EOF))
	s.Expect(string(rest[:n])).To(Equal("TWO=\n"), "a cursor stays valid in the next incarnation")
	s.Expect(s.output(log)).To(Equal("ONE=\nTWO=\n"))

	// Two readers do not affect each other.
	other := s.openLog(uid)
	var all sync.WaitGroup
	results := make([]string, 2)
	for i, l := range []runtime.Log{log, other} {
		all.Go(func() {
			p := make([]byte, 10)
			_, _ = l.ReadAt(p, 0)
			results[i] = string(p)
		})
	}
	all.Wait()
	s.Expect(results).To(HaveEach("ONE=\nTWO=\n"))
}

func testLogWait(s *suite) {
	uid := s.start("sleep")
	s.awaitOutput(uid, "ready")
	log := s.openLog(uid)
	_, end, err := log.Bounds()
	s.Expect(err).NotTo(HaveOccurred())
	if s.LogSnapshot {
		s.Expect(log.Wait(s.ctx, end)).To(MatchError(errors.ErrUnsupported))
		return
	}
	s.Expect(log.Wait(s.ctx, 0)).To(Succeed())
	ctx, cancel := context.WithTimeout(s.ctx, 300*time.Millisecond)
	defer cancel()
	s.Expect(log.Wait(ctx, end)).To(MatchError(context.DeadlineExceeded))

	waiting := make(chan error, 1)
	go func() { waiting <- log.Wait(context.Background(), end) }()
	s.Consistently(waiting, "200ms").ShouldNot(Receive())
	s.Expect(log.Close()).To(Succeed())
	s.Eventually(waiting).WithTimeout(Timeout).Should(Receive(MatchError(runtime.ErrNotFound)))

	s.killAndWait(uid)
	log = s.openLog(uid)
	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed())
	s.Expect(log.Wait(s.ctx, end)).To(MatchError(runtime.ErrNotFound), "the log was removed")
}

func testLogFlood(s *suite) {
	// The output is in order, from the truncated head to the end.
	const lines = 400_000
	uid := s.start("count", strconv.Itoa(lines))
	log := s.awaitLog(uid)
	last := fmt.Sprintf("line %09d\nready\n", lines-1)
	tail := make([]byte, len(last))
	s.Eventually(func(g Gomega) {
		_, end, err := log.Bounds()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(end).To(BeEquivalentTo(lines*15 + len("ready\n")))
		_, err = log.ReadAt(tail, end-int64(len(last)))
		g.Expect(err).To(Or(BeNil(), MatchError(io.EOF)))
	}).WithTimeout(Timeout).Should(Succeed())
	s.Expect(string(tail)).To(Equal(last))
	s.Eventually(func() int64 { return s.Usage(s.T, uid) }).WithTimeout(Timeout).Should(BeNumerically("<=", s.LogLimit))
	first, end, err := log.Bounds()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(first).To(BeNumerically(">", 0), "the head is truncated")
	_, err = log.ReadAt(tail, 0)
	s.Expect(err).To(MatchError(io.ErrUnexpectedEOF), "discarded output is not read as zeros")
	rest := s.output(log)
	s.Expect(rest).To(HaveLen(int(end - first)))
	s.Expect(rest).NotTo(ContainSubstring("\x00"))
	next := (first + 14) / 15 // the first whole line
	s.Expect(rest[next*15-first:]).To(HavePrefix(fmt.Sprintf("line %09d\n", next)), "offsets count from the start of the log")
	s.killAndWait(uid)

	// Output without newlines is truncated repeatedly while it is written. A fast writer may exceed the limit between two checks.
	uid = s.start("flood")
	log = s.awaitLog(uid)
	for _, written := range []int64{50, 100} {
		s.Eventually(func(g Gomega) {
			_, end, err := log.Bounds()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(end).To(BeNumerically(">", written*s.LogLimit))
		}).WithTimeout(Timeout).Should(Succeed())
		s.Eventually(func() int64 { return s.Usage(s.T, uid) }).WithTimeout(Timeout).Should(BeNumerically("<", 32*s.LogLimit))
	}
	s.killAndWait(uid)
	s.Expect(s.Usage(s.T, uid)).To(BeNumerically("<=", s.LogLimit))
}

func (s *suite) awaitLog(uid types.UID) runtime.Log {
	s.Helper()
	s.awaitPhaseNot(uid, facts.Starting)
	return s.openLog(uid)
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1):(\d+)`)

func testListeners(s *suite) {
	inspector := s.Runtime.Capabilities().Inspection
	uid := s.start("listen")
	out := s.awaitOutput(uid, "listening")
	port, err := strconv.Atoi(listening.FindStringSubmatch(out)[2])
	s.Expect(err).NotTo(HaveOccurred())
	number, pid := int32(port), s.observe(uid).PID
	sockets, err := inspector.Listeners(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(sockets.Own).To(ConsistOf(And(HaveField("Address", "127.0.0.1"), HaveField("Port", number), HaveField("PID", pid))))
	s.Expect(sockets.Others).To(BeEmpty())
	own := And(HaveField("PID", pid), HaveField("UID", uid), HaveField("Command", ContainSubstring("listen")), HaveField("Socket", sockets.Own[0].Socket))
	s.Expect(inspector.PortOwners(s.ctx, number)).To(ConsistOf(own))

	foreign, err := reuseport.Listen(s.ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), false)
	s.Expect(err).NotTo(HaveOccurred())
	sockets, err = inspector.Listeners(s.ctx, uid)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(sockets.Own).To(HaveLen(1))
	s.Expect(sockets.Others).To(ConsistOf(And(HaveField("Address", "127.0.0.1"), HaveField("Port", number), HaveField("Socket", Not(BeZero())))))
	s.Expect(inspector.PortOwners(s.ctx, number)).To(ConsistOf(own, And(HaveField("PID", BeEquivalentTo(os.Getpid())), HaveField("UID", BeEmpty()),
		HaveField("User", BeEquivalentTo(os.Getuid())), HaveField("Socket", sockets.Others[0].Socket))))
	s.killAndWait(uid)
	s.Expect(inspector.Listeners(s.ctx, uid)).To(BeZero())
	s.Expect(foreign.Close()).To(Succeed())
	// A child that this process is forking holds copies of all open descriptors, including the closed listener, until its exec.
	s.Eventually(func() ([]runtime.PortOwner, error) { return inspector.PortOwners(s.ctx, number) }).WithTimeout(Timeout).Should(BeEmpty())
}

// screen is the output that an attached client receives.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (v *screen) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(p)
}

func (v *screen) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.String()
}

// stuckClient is an attached client that accepts no output until ctx ends.
type stuckClient struct{ ctx context.Context }

func (v stuckClient) Write([]byte) (int, error) {
	<-v.ctx.Done()
	return 0, errors.New("ended")
}

func testAttach(s *suite) {
	attacher := s.Runtime.Capabilities().Terminals
	plain := s.start("sleep")
	s.awaitPhase(plain, facts.Running)
	s.Expect(attacher.Attach(s.ctx, plain, strings.NewReader(""), io.Discard, nil)).To(MatchError(runtime.ErrNoTerminal))
	s.killAndWait(plain)
	s.Expect(attacher.Attach(s.ctx, plain, strings.NewReader(""), io.Discard, nil)).To(MatchError(runtime.ErrNotFound))
	s.Expect(attacher.Attach(s.ctx, newUID(), strings.NewReader(""), io.Discard, nil)).To(MatchError(runtime.ErrNotFound))

	uid := newUID()
	p := s.process(uid, 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 91, Rows: 31}
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	if s.Container {
		s.awaitOutput(uid, "size 91x31") // an engine may set the size after the program has started
	}
	s.Expect(s.awaitOutput(uid, "ready")).To(ContainSubstring("size 91x31"))

	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	idle, idleIn := io.Pipe()
	defer func() { _ = idleIn.Close() }()
	slow := make(chan error, 1)
	go func() { slow <- attacher.Attach(ctx, uid, idle, stuckClient{ctx}, nil) }()

	in, keys := io.Pipe()
	defer func() { _ = keys.Close() }()
	view, resize, ended := &screen{}, make(chan runtime.Terminal), make(chan error, 1)
	go func() { ended <- attacher.Attach(ctx, uid, in, view, resize) }()
	see := func(text string) {
		s.Helper()
		s.Eventually(view.String).WithTimeout(Timeout).Should(ContainSubstring(text))
	}
	see("ready") // earlier output is replayed
	resize <- runtime.Terminal{Columns: 120, Rows: 40}
	see("size 120x40")
	_, err := io.WriteString(keys, "hello\n")
	s.Expect(err).NotTo(HaveOccurred())
	see("got <hello>")
	// The client that never reads must not block other clients or the program.
	for i := range 100 {
		_, err := io.WriteString(keys, strings.Repeat("x", 1000)+strconv.Itoa(i)+"\n")
		s.Expect(err).NotTo(HaveOccurred())
	}
	see("x99>")
	cancelled, stop := context.WithCancel(s.ctx)
	third := &screen{}
	gone := make(chan error, 1)
	go func() { gone <- attacher.Attach(cancelled, uid, idle, third, nil) }()
	s.Eventually(third.String).WithTimeout(Timeout).Should(ContainSubstring("x99>"))
	stop()
	s.Eventually(gone).WithTimeout(Timeout).Should(Receive(BeNil()))

	_, err = io.WriteString(keys, "bye\n")
	s.Expect(err).NotTo(HaveOccurred())
	see("farewell")
	s.Eventually(ended).WithTimeout(Timeout).Should(Receive(BeNil()))
	s.Expect(s.awaitPhase(uid, facts.Exited).Exit.Code).To(BeEquivalentTo(5))
	cancel()
	s.Eventually(slow).WithTimeout(Timeout).Should(Receive())
	s.Expect(s.output(s.openLog(uid))).To(ContainSubstring("farewell"))
}

// testSize attaches several clients. The one that attached or was resized last owns the size, and when it leaves, the one before it.
func testSize(s *suite) {
	uid, first := newUID(), runtime.Terminal{Columns: 91, Rows: 31}
	p := s.process(uid, 1, "terminal")
	p.Terminal = &first
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.awaitOutput(uid, "ready")
	has := func(want runtime.Terminal) {
		s.Helper()
		s.Eventually(func(g Gomega) {
			size, known := s.Runtime.Capabilities().Size(s.ctx, uid)
			g.Expect(known).To(BeTrue())
			g.Expect(size).To(Equal(want))
		}).WithTimeout(Timeout).Should(Succeed())
	}
	has(first)
	type client struct {
		resize chan runtime.Terminal
		leave  func()
	}
	attach := func(size *runtime.Terminal) *client {
		s.Helper()
		ctx, cancel := context.WithCancel(s.ctx)
		in, keys := io.Pipe()
		c, view, gone := &client{resize: make(chan runtime.Terminal, 1)}, &screen{}, make(chan error, 1)
		if size != nil {
			c.resize <- *size
		}
		go func() { gone <- s.Runtime.Capabilities().Terminals.Attach(ctx, uid, in, view, c.resize) }()
		s.Eventually(view.String).WithTimeout(Timeout).Should(ContainSubstring("ready"))
		c.leave = func() {
			s.Helper()
			cancel()
			s.Eventually(gone).WithTimeout(Timeout).Should(Receive(BeNil()))
			_ = keys.Close()
		}
		return c
	}
	small, large, other := runtime.Terminal{Columns: 80, Rows: 24}, runtime.Terminal{Columns: 213, Rows: 58}, runtime.Terminal{Columns: 100, Rows: 50}
	a := attach(&small)
	has(small)
	b := attach(&large)
	has(large)
	c := attach(nil) // only looks on
	a.resize <- other
	has(other)
	a.leave()
	has(large)
	c.leave()
	has(large)
	s.Expect(s.Runtime.Capabilities().Terminals.Type(s.ctx, uid, runtime.Keystrokes{Text: strings.Repeat("y", 190) + "\n"})).To(Succeed())
	s.awaitOutput(uid, "got <yyy")
	s.Eventually(func() (string, error) {
		view, err := s.Runtime.Capabilities().Shown(s.ctx, uid, first)
		return view.Text, err
	}).WithTimeout(Timeout).Should(ContainSubstring("got <"+strings.Repeat("y", 190)+">"), "the screen is as wide as the terminal")
	b.leave()
	after := large // the last size remains
	if s.Window {
		after = first
	}
	has(after)
	if s.Reopen != nil {
		s.Runtime = s.Reopen(s.T)
		has(after)
	}
	s.killAndWait(uid)
	has(after) // for the screen of a program that has ended
}

// testMenus types answers into programs that show two menus in succession.
func testMenus(s *suite) {
	size := runtime.Terminal{Columns: 91, Rows: 31}
	type answer struct {
		text    string
		keys    []runtime.Key
		verdict terminal.Verdict // empty: everything is typed
		want    string
	}
	for kind, answers := range map[string][]answer{
		"once": {
			{text: "1", keys: []runtime.Key{runtime.KeyEnter}, verdict: terminal.AnotherQuestion, want: "answers 1 by 1"},
			{text: "2", keys: []runtime.Key{runtime.KeyEnter}, verdict: terminal.Answered, want: "answers 1 by 1, 2 by 2"},
		},
		"same": {
			{text: "1", keys: []runtime.Key{runtime.KeyEnter}, verdict: terminal.AnotherQuestion, want: "answers 1 by 1"},
			{keys: []runtime.Key{runtime.KeyEnter, runtime.KeyEnter}, verdict: terminal.Answered, want: "answers 1 by 1, 1 by Enter"},
		},
		"confirm": {
			{text: "2", keys: []runtime.Key{runtime.KeyEnter}, want: "answers 2 by Enter"},
			{keys: []runtime.Key{runtime.KeyEnter}, want: "answers 2 by Enter, 1 by Enter"},
		},
	} {
		uid := newUID()
		p := s.process(uid, 1, "menus", kind)
		p.Terminal = &size
		s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
		s.awaitOutput(uid, "2. No")
		for _, answer := range answers {
			err := s.Runtime.Capabilities().Terminals.Type(s.ctx, uid, runtime.Keystrokes{Text: answer.text, Keys: answer.keys,
				Look: func(ctx context.Context) (terminal.Moment, error) {
					return s.Runtime.Capabilities().Look(ctx, uid, size)
				}})
			if answer.verdict == "" {
				s.Expect(err).NotTo(HaveOccurred(), kind)
			} else {
				var withheld *runtime.WithheldError
				s.Expect(errors.As(err, &withheld)).To(BeTrue(), "%s, %q: %v", kind, answer.text, err)
				s.Expect(withheld.Verdict).To(Equal(answer.verdict), "%s, %q", kind, answer.text)
			}
			s.awaitOutput(uid, answer.want)
		}
		s.killAndWait(uid)
	}
}
