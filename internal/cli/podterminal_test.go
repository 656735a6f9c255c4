// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// terminalServer fakes the API server for the terminal of a Pod: it echoes the input, and Ctrl-D ends the program. If says is true, it also confirms the end of
// the input and closes the connection, as some nodes do.
func terminalServer(t *testing.T, f *fixture, says bool) (typed chan string) {
	typed = make(chan string, 100)
	upgrader := websocket.Upgrader{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/log") {
			return
		}
		typed <- r.Method + " " + r.URL.Path + "?" + r.URL.RawQuery
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		for {
			_, message, err := conn.ReadMessage()
			if err != nil || len(message) == 0 {
				return
			}
			switch kind, rest := message[0], message[1:]; {
			case kind == remotecommand.StreamStdIn && string(rest) == "\x04", kind == remotecommand.StreamClose && says:
				success, _ := json.Marshal(metav1.Status{Status: metav1.StatusSuccess})
				_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{remotecommand.StreamErr}, success...))
				_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
				return
			case kind == remotecommand.StreamResize:
				typed <- "size " + strings.TrimSpace(string(rest))
			case kind == remotecommand.StreamStdIn:
				typed <- string(rest)
				_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{remotecommand.StreamStdOut}, fmt.Sprintf("shown: %s\n", rest)...))
			}
		}
	}))
	t.Cleanup(server.Close)
	f.app.connect = func(*connectionFlags) (*connection, error) {
		return &connection{config: &rest.Config{Host: server.URL}, client: f.api, namespace: "default"}, nil
	}
	return typed
}

const attachQuery = "GET /api/v1/namespaces/default/pods/agent-2/attach?container=main&stdin=true&stdout=true&tty=true"

func agentInPod() *v1alpha1.Instance {
	agent := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "uid-agent"}}
	agent.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "agent"}}
	agent.Status.AttachCommand = "kubectl attach -it -n default pod/agent-2 -c main"
	return agent
}

func agentPod(incarnation string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent-" + incarnation,
		Labels: map[string]string{pod.LabelUID: "uid-agent", pod.LabelIncarnation: incarnation}}}
}

func TestAttach_ConnectsToPodTerminal(t *testing.T) {
	for name, test := range map[string]struct{ last, says string }{
		"the program ends":  {last: "\x04", says: "the process has ended"},
		"the user detaches": {last: "\x1d", says: "detached from instance/agent; the process keeps running"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(agentInPod(), agentPod("1"), agentPod("2"))
			typed := terminalServer(t, f, true)
			in, keys := io.Pipe()
			f.app.in = in
			ended := make(chan int, 1)
			go func() { ended <- f.run(t.Context(), "attach", "instance/agent") }()
			g.Eventually(typed, timeout).Should(Receive(Equal(attachQuery)))
			_, err := io.WriteString(keys, "hello")
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(f.out.String, timeout).Should(ContainSubstring("shown: hello\n"))
			_, err = io.WriteString(keys, test.last)
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(ended, timeout).Should(Receive(BeZero()), f.err.String())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
			g.Expect(keys.Close()).To(Succeed())
		})
	}
}

// No node reports the size of a terminal, so the manager draws the screen with the size of the spec.
func TestAttach_LeavesPodTerminalWithUsualSize(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	typed := terminalServer(t, f, true)
	to, err := f.app.connect(nil)
	g.Expect(err).NotTo(HaveOccurred())
	agent := agentPod("2")
	agent.Annotations = map[string]string{"berth.dev/terminal": "100x30"}
	conn, err := takePod(t.Context(), to.config, agent, &runtime.Terminal{Columns: 213, Rows: 58})
	g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- conn.Receive(io.Discard, nil) }()
	g.Eventually(typed, timeout).Should(Receive(Equal(attachQuery)))
	g.Eventually(typed, timeout).Should(Receive(Equal(`size {"Width":213,"Height":58}`)))
	g.Expect(conn.Close()).To(Succeed())
	g.Eventually(typed, timeout).Should(Receive(Equal(`size {"Width":100,"Height":30}`)))
	g.Eventually(ended, timeout).Should(Receive())
}

func TestSend_TypesIntoPodTerminal(t *testing.T) {
	for name, says := range map[string]bool{"node confirms delivery": true, "node does not confirm delivery": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(agentInPod(), agentPod("2"))
			typed := terminalServer(t, f, says)
			g.Expect(f.run(t.Context(), "send", "instance/agent", "go", "on")).To(BeZero(), f.err.String())
			g.Expect(typed).To(Receive(Equal(attachQuery)))
			g.Expect(typed).To(Receive(Equal("go on")))
			g.Expect(typed).To(Receive(Equal("\r")), "Enter is sent separately")
		})
	}
}

func TestSend_WakesIdlePod(t *testing.T) {
	asleep := func() *v1alpha1.Instance {
		agent := agentInPod()
		agent.Status.AttachCommand = ""
		agent.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIdle}}
		return agent
	}
	for name, test := range map[string]struct {
		condition metav1.Condition
		code      int
		says      string
	}{
		"starts and receives input": {condition: metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRunning}},
		"fails to start": {code: 1, says: "StartFailed: no such image",
			condition: metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonStartFailed, Message: "no such image"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			falls := asleep()
			falls.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 2, Reason: v1alpha1.ReasonIdle}
			f := newFixture(falls, agentPod("2"))
			typed := terminalServer(t, f, true)
			code := make(chan int, 1)
			go func() { code <- f.run(t.Context(), "send", "instance/agent", "go", "on") }()
			agent := &v1alpha1.Instance{}
			read := func() string {
				g.Expect(f.api.Get(t.Context(), client.ObjectKeyFromObject(asleep()), agent)).To(Succeed())
				return agent.Spec.RestartToken
			}
			g.Consistently(read, 300*time.Millisecond).Should(BeEmpty(), "no wake-up is requested while the process is still stopping")
			agent.Status.Stopping = nil
			g.Expect(f.api.Status().Update(t.Context(), agent)).To(Succeed())
			g.Eventually(read, timeout).ShouldNot(BeEmpty())
			g.Consistently(code, 300*time.Millisecond).ShouldNot(Receive(), "Ready of a sleeping object does not count")
			agent.Status.ObservedRestartToken, agent.Status.AttachCommand = agent.Spec.RestartToken, agentInPod().Status.AttachCommand
			meta.SetStatusCondition(&agent.Status.Conditions, test.condition)
			g.Expect(f.api.Status().Update(t.Context(), agent)).To(Succeed())
			g.Eventually(code, timeout).Should(Receive(Equal(test.code)), f.err.String())
			g.Expect(f.err.String()).To(And(ContainSubstring("instance/agent is idle; starting it"), ContainSubstring(test.says)))
			if test.code == 0 {
				g.Expect(typed).To(Receive(Equal(attachQuery)))
				g.Expect(typed).To(Receive(Equal("go on")))
				g.Expect(typed).To(Receive(Equal("\r")), "Enter is sent separately")
			}
		})
	}
}

func TestSend_TypesOnlyIntoTheIncarnationThatItsUserSaw(t *testing.T) {
	asleep := agentInPod()
	asleep.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIdle}}
	for name, test := range map[string]struct {
		agent *v1alpha1.Instance
		args  string
		code  int
		says  string
	}{
		"the incarnation that runs": {agentInPod(), "--incarnation 2", 0, ""},
		"an earlier incarnation":    {agentInPod(), "--incarnation 1", 1, "instance/agent was restarted: incarnation 2 is the newest, not 1"},
		"one that was put to sleep": {asleep, "--incarnation 1", 1, "was restarted"},
		"incarnation 0":             {agentInPod(), "--incarnation 0", 2, "--incarnation must be at least 1, not 0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(test.agent, agentPod("2"))
			typed := terminalServer(t, f, true)
			g.Expect(f.run(t.Context(), append([]string{"send", "instance/agent", "go on"}, strings.Fields(test.args)...)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
			if test.code != 0 {
				g.Expect(typed).NotTo(Receive(), "nothing was typed")
				agent := &v1alpha1.Instance{}
				g.Expect(f.api.Get(t.Context(), client.ObjectKeyFromObject(test.agent), agent)).To(Succeed())
				g.Expect(agent.Spec.RestartToken).To(BeEmpty(), "no other incarnation is started")
			}
		})
	}
}

func TestAttachAndSend_FailWithoutPodTerminal(t *testing.T) {
	stopped := agentInPod()
	stopped.Status.AttachCommand = ""
	for name, test := range map[string]struct {
		f          *fixture
		word, says string
	}{
		"stopped":     {newFixture(stopped), "instance/agent", "instance/agent has no terminal in a Pod at the moment: see berth status instance/agent"},
		"a DevServer": {newFixture(web(webInPod), webPod("1")), "devserver/web", "in Pods only Instances have one; use berth logs devserver/web to see its output"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for _, words := range [][]string{{"attach", test.word}, {"send", test.word, "hello"}} {
				g.Expect(test.f.run(t.Context(), words...)).To(Equal(1))
				g.Expect(test.f.err.String()).To(ContainSubstring(test.says))
			}
		})
	}
}
