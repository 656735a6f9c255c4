// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
)

// terminalFixture fakes an API server that serves only the log and the terminal of one Pod. Its Runtime knows that Pod, and the program in the Pod is running.
type terminalFixture struct {
	testing.TB
	*WithT
	*Runtime
	pod *corev1.Pod

	mu              sync.Mutex
	logged          string
	endlessLog      bool // the node ignores the limits of a request for the log
	hangLogRequests bool // requests for the log get no response
	refuseTerminals bool // connections to the terminal are refused
	logRequests     int  // requests for the log
	conns           []*websocket.Conn
	typed           chan string
}

func newTerminalFixture(t *testing.T) *terminalFixture {
	f := &terminalFixture{TB: t, WithT: NewWithT(t), typed: make(chan string, 10)}
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	f.pod = podVersion("pod", 1, 1)
	f.pod.Namespace, f.pod.Name, f.pod.Spec.NodeName = "default", podName("object", "agent", 1), "node"
	f.pod.Annotations = map[string]string{annotationTerminal: "100x30"}
	f.pod.Spec.Containers = []corev1.Container{{Name: Container, TTY: true}}
	main := mainStatus(f.pod)
	main.ContainerID, main.State.Running = "containerd://x", &corev1.ContainerStateRunning{StartedAt: metav1.Now()}
	config := &rest.Config{Host: server.URL}
	r := &Runtime{client: clientFor(t, config), config: config, log: logr.Discard(), events: eventqueue.New(), store: newStore(), doubts: newDoubts()}
	r.views.of, r.views.most, r.tasks = map[types.UID]*view{}, 1, background.New()
	r.tasks.Go(func() { r.events.Run(r.tasks.Lifetime().Done()) })
	r.SetNamespace("object", f.pod.Namespace)
	r.store.put(f.pod, true)
	f.Runtime = r
	t.Cleanup(func() {
		f.Expect(r.Close()).To(Succeed())
		f.closeConnections()
		server.Close()
	})
	return f
}

func (f *terminalFixture) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	logged, deaf, refuses := f.logged, f.hangLogRequests, f.refuseTerminals
	f.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/log") {
		f.mu.Lock()
		f.logRequests++
		f.mu.Unlock()
		if deaf {
			<-r.Context().Done()
		}
		_, _ = w.Write(requested(r.URL.Query(), logged))
		f.mu.Lock()
		endless := f.endlessLog
		f.mu.Unlock()
		for err := error(nil); endless && err == nil; {
			_, err = w.Write([]byte("more\n"))
		}
		return
	}
	if refuses {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	if r.URL.Query().Get("stdin") == "" {
		f.mu.Lock()
		f.conns = append(f.conns, conn)
		f.mu.Unlock()
	}
	f.read(conn)
}

// requested returns the part of a log that a node returns for a request.
func requested(query url.Values, logged string) []byte {
	lines := strings.SplitAfter(logged, "\n")
	if n, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		if lines[len(lines)-1] == "" {
			n++
		}
		logged = strings.Join(lines[max(0, len(lines)-n):], "")
	}
	if n, err := strconv.Atoi(query.Get("limitBytes")); err == nil {
		logged = logged[:min(n, len(logged))]
	}
	return []byte(logged)
}

// read receives the input and the window sizes until the connection or the input ends.
func (f *terminalFixture) read(conn *websocket.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		_, message, err := conn.ReadMessage()
		if err != nil || len(message) == 0 {
			return
		}
		switch kind, rest := message[0], message[1:]; kind {
		case remotecommand.StreamStdIn, remotecommand.StreamResize:
			f.typed <- string(rest)
		case remotecommand.StreamClose:
			success, _ := json.Marshal(metav1.Status{Status: metav1.StatusSuccess})
			_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{remotecommand.StreamErr}, success...))
			_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
			return
		}
	}
}

// sendOutput sends output of the program.
func (f *terminalFixture) sendOutput(text string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		f.Expect(conn.WriteMessage(websocket.BinaryMessage, append([]byte{remotecommand.StreamStdOut}, text...))).To(Succeed())
	}
}

// closeConnections closes all connections.
func (f *terminalFixture) closeConnections() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}

func (f *terminalFixture) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// countLogRequests returns the number of requests for the log.
func (f *terminalFixture) countLogRequests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.logRequests
}

// awaitConnection waits until there is a connection to the terminal.
func (f *terminalFixture) awaitConnection() {
	f.Helper()
	f.Eventually(func() bool {
		_, live := f.look("object", f.pod).activity()
		return live
	}).WithTimeout(conformance.Timeout).Should(BeTrue())
}

func (f *terminalFixture) awaitEvent() {
	f.Helper()
	f.Eventually(f.Events()).WithTimeout(conformance.Timeout).Should(Receive(BeEquivalentTo("object")))
}

func TestTerminal_ReconnectsAndKeepsOutput(t *testing.T) {
	f := newTerminalFixture(t)
	f.logged = "2026-01-02T03:04:05Z begun\n"
	f.Expect(f.LastActivity(t.Context(), "object")).To(BeTemporally("==", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), "from the log")
	f.Eventually(f.typed).WithTimeout(conformance.Timeout).Should(Receive(MatchJSON(`{"Width": 100, "Height": 30}`)), "the size is set because the program has just started")
	f.awaitConnection()
	f.Expect(f.Watch(t.Context(), "object")).To(Succeed())
	f.sendOutput("Continue? [y/N] ")
	f.awaitEvent()
	f.Expect(f.Capture(t.Context(), "object")).To(HaveField("Text", "begun\nContinue? [y/N]"))
	f.Expect(f.LastActivity(t.Context(), "object")).To(BeTemporally("~", time.Now(), conformance.Timeout))
	asked := f.countLogRequests()
	f.Expect(f.LastActivity(t.Context(), "object")).NotTo(BeZero())
	f.Expect(f.countLogRequests()).To(Equal(asked), "a known log is not requested again")

	// The connection is lost, and there is no output meanwhile.
	f.Expect(f.Watch(t.Context(), "object")).To(Succeed())
	f.update(func() { f.refuseTerminals = true })
	f.closeConnections()
	f.awaitEvent()
	f.Expect(f.Watch(t.Context(), "object")).NotTo(Succeed(), "there would be no event")
	f.Expect(f.Capture(t.Context(), "object")).To(HaveField("Text", "begun"), "only the log is available")
	f.update(func() { f.refuseTerminals = false })
	f.awaitConnection()
	f.Expect(f.Capture(t.Context(), "object")).To(HaveField("Text", "begun\nContinue? [y/N]"), "the text from before is not forgotten")
	f.Expect(f.typed).NotTo(Receive(), "the size may be that of a user's window by now")

	// The connection is lost again, and there is output meanwhile.
	f.closeConnections()
	f.update(func() {
		f.logged += "2026-01-02T03:04:06Z Continue? [y/N] y\n2026-01-02T03:04:07Z done\n"
	})
	f.Eventually(f.Capture).WithArguments(t.Context(), types.UID("object")).WithTimeout(conformance.Timeout).Should(HaveField("Text", HaveSuffix("y\ndone")))
	f.awaitConnection()
	f.Expect(f.Capture(t.Context(), "object")).To(HaveField("Text", "begun\nContinue? [y/N] y\ndone"))
}

func TestType_SendsInputToPod(t *testing.T) {
	f := newTerminalFixture(t)
	f.Expect(f.Type(t.Context(), "object", runtime.Keystrokes{Interrupt: true})).To(Succeed())
	f.Expect(f.typed).To(Receive(Equal("\x03")))
	f.Expect(f.Type(t.Context(), "nobody", runtime.Keystrokes{Interrupt: true})).To(MatchError(runtime.ErrNotFound))
	f.update(func() { f.refuseTerminals = true })
	f.Expect(f.Type(t.Context(), "object", runtime.Keystrokes{Interrupt: true})).To(MatchError(ContainSubstring("Pod default/agent-")))
	f.config = nil
	f.Expect(f.Type(t.Context(), "object", runtime.Keystrokes{Interrupt: true})).To(MatchError(ContainSubstring("not configured for terminals")))
}

func TestSilentNode_BlocksOnlyFirstCall(t *testing.T) {
	f := newTerminalFixture(t)
	f.hangLogRequests, f.refuseTerminals = true, true
	_, err := f.LastActivity(t.Context(), "object")
	f.Expect(err).To(MatchError(context.DeadlineExceeded))
	f.Expect(err).NotTo(MatchError(runtime.ErrNotFound), "an unknown state is not reported as absent")
	asked := f.countLogRequests()
	_, err = f.LastActivity(t.Context(), "object")
	f.Expect(err).To(MatchError(ContainSubstring("node node does not respond")))
	_, err = f.Capture(t.Context(), "object")
	f.Expect(err).To(MatchError(ContainSubstring("node node does not respond")))
	f.Expect(f.countLogRequests()).To(Equal(asked))
}

func TestTerminal_DisconnectsAfterPodEnds(t *testing.T) {
	f := newTerminalFixture(t)
	f.awaitConnection()
	other := podVersion("other", 1, 1)
	f.Expect(f.look("another object", other)).To(BeNil(), "the number of connections is limited")
	over := f.pod.DeepCopy()
	over.ResourceVersion, over.Status.Phase = "2", corev1.PodFailed
	f.store.put(over, true)
	f.closeConnections()
	free := func() int {
		f.views.mu.Lock()
		defer f.views.mu.Unlock()
		return f.views.busy
	}
	f.Eventually(free).WithTimeout(conformance.Timeout).Should(BeZero(), "another connection is possible")
	f.Expect(f.Watch(t.Context(), "object")).To(MatchError(runtime.ErrNotFound))
	f.store.remove(over, true)
	f.Eventually(func() int {
		f.views.mu.Lock()
		defer f.views.mu.Unlock()
		return len(f.views.of)
	}).WithTimeout(conformance.Timeout).Should(BeZero(), "no state is kept for a removed Pod")
}

func TestLog_IsSnapshotOfBoundedSize(t *testing.T) {
	f := newTerminalFixture(t)
	f.setLogged("ready\n")
	log, err := f.OpenLog(t.Context(), "object")
	f.Expect(err).NotTo(HaveOccurred())
	first, end, err := log.Bounds()
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect([]int64{first, end}).To(Equal([]int64{runtime.IncarnationLog, runtime.IncarnationLog + 6}))
	f.Expect(log.Wait(t.Context(), first)).To(MatchError(errors.ErrUnsupported))

	f.store.remove(f.pod, true)
	text := make([]byte, 7)
	n, err := log.ReadAt(text, first)
	f.Expect(err).To(MatchError(io.EOF))
	f.Expect(string(text[:n])).To(Equal("ready\n"), "what was read stays readable")
	f.Expect(log.Close()).To(Succeed())

	f.store.put(f.pod, true)
	f.setLogged("first\n" + strings.Repeat(strings.Repeat("x", 1<<10)+"\n", 400) + "end\n")
	log, err = f.OpenLog(t.Context(), "object")
	f.Expect(err).NotTo(HaveOccurred())
	first, end, err = log.Bounds()
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(end).To(BeEquivalentTo(runtime.IncarnationLog+unknownOffset+(lastLines-1)*(1<<10+1)+4), "only the last lines are requested")
	f.Expect(end - first).To(And(BeNumerically(">=", maxLog), BeNumerically("<=", maxLog+maxLog/4)))
	_, err = log.ReadAt(text, runtime.IncarnationLog+unknownOffset)
	f.Expect(err).To(MatchError(io.ErrUnexpectedEOF), "discarded output is not readable")
	n, err = log.ReadAt(text, end-4)
	f.Expect(err).To(MatchError(io.EOF))
	f.Expect(string(text[:n])).To(Equal("end\n"))
}

// TestLog_IsBoundedInBytes checks that a node that ignores the limits of a request cannot send an endless log.
func TestLog_IsBoundedInBytes(t *testing.T) {
	f := newTerminalFixture(t)
	f.mu.Lock()
	f.endlessLog = true
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), conformance.Timeout)
	defer cancel()
	log, err := f.OpenLog(ctx, "object")
	f.Expect(err).NotTo(HaveOccurred())
	first, end, err := log.Bounds()
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(end).To(BeEquivalentTo(runtime.IncarnationLog + unknownOffset + lastLines*nodeLine))
	f.Expect(end - first).To(BeNumerically("<=", maxLog+maxLog/4))
	text, _, err := f.Runtime.logged(ctx, f.pod, 1)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(len(text)).To(BeNumerically("<=", mostShown))
}

// TestLog_DoesNotWaitForDeafNode checks that only one call in deafFor waits for a node that does not respond, because the worker of a controller waits with it.
func TestLog_DoesNotWaitForDeafNode(t *testing.T) {
	f := newTerminalFixture(t)
	f.mu.Lock()
	f.hangLogRequests = true
	f.mu.Unlock()
	began := time.Now()
	_, err := f.OpenLog(t.Context(), "object")
	f.Expect(err).To(MatchError(context.DeadlineExceeded), "a node that does not respond")
	f.Expect(time.Since(began)).To(BeNumerically("<", logTimeout))
	f.mu.Lock()
	requests := f.logRequests
	f.mu.Unlock()
	_, err = f.OpenLog(t.Context(), "object")
	f.Expect(err).To(MatchError(ContainSubstring("its node node does not respond")))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Expect(f.logRequests).To(Equal(requests), "the node is not asked again")
}

func (f *terminalFixture) setLogged(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logged = text
}
