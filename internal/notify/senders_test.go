// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// environment returns a function like os.Getenv.
func environment(of map[string]string) func(string) string {
	return func(name string) string { return of[name] }
}

// hostileMessage returns a message whose question contains control characters and markup.
func hostileMessage() Message {
	q := question("agent")
	q.Text = evil
	return newMessage([]Question{q}, true)
}

func TestTerminal_WritesOneSequence(t *testing.T) {
	for name, tc := range map[string]struct {
		env           map[string]string
		prefix, after string
	}{
		"OSC 9":   {nil, "\x1b]9;Berth: instance/agent waits for you: AwaitingInput", "\x1b\\"},
		"OSC 777": {map[string]string{"TERM": "foot-extra"}, "\x1b]777;notify;Berth: instance/agent waits for you;AwaitingInput", "\x1b\\"},
		"VTE":     {map[string]string{"VTE_VERSION": "7600"}, "\x1b]777;notify;Berth", "\x1b\\"},
		"tmux":    {map[string]string{"TMUX": "/tmp/tmux"}, "\x1bPtmux;\x1b\x1b]9;Berth", "\x1b\x1b\\\x1b\\"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out := &bytes.Buffer{}
			g.Expect(NewTerminal(out, environment(tc.env)).Send(t.Context(), hostileMessage())).To(Succeed())
			text, found := strings.CutPrefix(out.String(), tc.prefix)
			g.Expect(found).To(BeTrue(), "%q", out.String())
			text, found = strings.CutSuffix(text, tc.after)
			g.Expect(found).To(BeTrue(), "%q", out.String())
			g.Expect(text).NotTo(ContainAny("\x1b", "\a", "\n", "\u009b", "\u009c", "\u202e"))
			g.Expect(text).To(ContainSubstring("OWNED"), "printable text stays")
		})
	}
}

// ContainAny matches a text that contains at least one of the given texts.
func ContainAny(texts ...string) OmegaMatcher {
	var each []OmegaMatcher
	for _, text := range texts {
		each = append(each, ContainSubstring(text))
	}
	return Or(each...)
}

func TestCommand_GetsTheMessageWithoutAShell(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "tell")
	g.Expect(os.WriteFile(script, []byte("#!/bin/sh\ncat > \"$1/input\"\nenv > \"$1/env\"\nprintf '%s' \"$2\" > \"$1/argument\"\n"), 0o700)).To(Succeed())
	c := &Command{Argv: []string{script, dir, "$(id); `id`"}}
	g.Expect(c.Send(t.Context(), hostileMessage())).To(Succeed())

	input, err := os.ReadFile(filepath.Join(dir, "input"))
	g.Expect(err).NotTo(HaveOccurred())
	var m Message
	g.Expect(json.Unmarshal(input, &m)).To(Succeed())
	g.Expect(m.Questions).To(HaveLen(1))
	g.Expect(m.Questions[0].Name).To(Equal("instance/agent"))
	g.Expect(os.ReadFile(filepath.Join(dir, "argument"))).To(BeEquivalentTo("$(id); `id`"))
	variables, err := os.ReadFile(filepath.Join(dir, "env"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, line := range []string{"BERTH_NOTIFY_TITLE=Berth: instance/agent waits for you", "BERTH_NOTIFY_COUNT=1", "BERTH_NOTIFY_NAMESPACE=default",
		"BERTH_NOTIFY_NAME=instance/agent", "BERTH_NOTIFY_REASON=AwaitingInput", "BERTH_NOTIFY_SINCE=" + night.Add(-time.Hour).UTC().Format(time.RFC3339)} {
		g.Expect(strings.Split(string(variables), "\n")).To(ContainElement(line))
	}
	g.Expect(string(variables)).NotTo(ContainAny("\x1b", "\a"))
}

func TestCommand_IsKilledWithItsGroup(t *testing.T) {
	g := NewWithT(t)
	pid := filepath.Join(t.TempDir(), "pid")
	c := &Command{Argv: []string{"/bin/sh", "-c", "sleep 1000 & echo $! > " + pid + "; wait"}, timeout: 500 * time.Millisecond}
	g.Expect(c.Send(t.Context(), hostileMessage())).To(MatchError("killed after at most 500ms"))
	text, err := os.ReadFile(pid)
	g.Expect(err).NotTo(HaveOccurred())
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return errors.Is(syscall.Kill(child, 0), syscall.ESRCH) || err == nil && strings.Contains(string(state), ") Z ")
	}).WithTimeout(10 * time.Second).Should(BeTrue())
}

func TestCommand_ReportsItsError(t *testing.T) {
	g := NewWithT(t)
	c := &Command{Argv: []string{"/bin/sh", "-c", "printf '\\033]0;OWNED\\007no route' >&2; head -c 100000 /dev/zero >&2; exit 3"}}
	err := c.Send(t.Context(), hostileMessage())
	g.Expect(err).To(MatchError(And(ContainSubstring("exit status 3"), ContainSubstring("no route"))))
	g.Expect(err.Error()).NotTo(ContainAny("\x1b", "\x00"))
	g.Expect(len(err.Error())).To(BeNumerically("<", 4*maxStderr))
	g.Expect((&Command{Argv: []string{"/nonexistent/program"}}).Send(t.Context(), hostileMessage())).To(MatchError(HaveSuffix("no such file or directory")))
	g.Expect((&Command{Argv: []string{"false"}}).Send(t.Context(), hostileMessage())).To(MatchError("exit status 1"))
}

// receiver is a web server that answers with the given statuses, and then with 200.
type receiver struct {
	*httptest.Server
	requests atomic.Int32
	bodies   chan string
	ids      chan string
	kinds    chan string
}

func newReceiver(t *testing.T, statuses ...int) *receiver {
	t.Helper()
	r := &receiver{bodies: make(chan string, 10), ids: make(chan string, 10), kinds: make(chan string, 10)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		r.bodies <- string(body)
		r.ids <- request.Header.Get("Idempotency-Key")
		r.kinds <- request.Method + " " + request.Header.Get("Content-Type")
		if n := int(r.requests.Add(1)); n <= len(statuses) {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(statuses[n-1])
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) webhook(g Gomega, body string) *Webhook {
	w, err := NewWebhook(r.URL+"/services/SECRET", body)
	g.Expect(err).NotTo(HaveOccurred())
	w.delay = time.Millisecond
	return w
}

func TestWebhook_PostsTheMessage(t *testing.T) {
	g := NewWithT(t)
	r := newReceiver(t)
	g.Expect(r.webhook(g, "").Send(t.Context(), newMessage(questions(2), false))).To(Succeed())
	var m Message
	g.Expect(json.Unmarshal([]byte(<-r.bodies), &m)).To(Succeed())
	g.Expect(m.Questions).To(HaveLen(2))
	g.Expect(m.Questions[0].Text).To(BeEmpty())
	g.Expect(<-r.kinds).To(Equal("POST application/json"))

	g.Expect(r.webhook(g, `{"text": {{json .Title}}}`).Send(t.Context(), newMessage(questions(1), false))).To(Succeed())
	g.Expect(<-r.bodies).To(Equal(`{"text": "Berth: instance/agent-0 waits for you"}`))
	g.Expect(<-r.kinds).To(Equal("POST application/json"))
	g.Expect(r.webhook(g, "{{.Title}}").Send(t.Context(), newMessage(questions(1), false))).To(Succeed())
	<-r.kinds
}

func TestWebhook_RetriesOnlyWhatMaySucceed(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses []int
		requests int32
		err      OmegaMatcher
	}{
		"unavailable once":  {[]int{503}, 2, BeNil()},
		"too many requests": {[]int{429, 429}, 3, BeNil()},
		"unavailable":       {[]int{500, 500, 500, 500}, webhookAttempts, MatchError(ContainSubstring("status 500 Internal Server Error"))},
		"not found":         {[]int{404, 200}, 1, MatchError(ContainSubstring("status 404 Not Found"))},
		"a redirect":        {[]int{307, 200}, 1, MatchError(ContainSubstring("redirects (status 307)"))},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReceiver(t, tc.statuses...)
			err := r.webhook(g, "").Send(t.Context(), newMessage(questions(1), false))
			g.Expect(err).To(tc.err)
			g.Expect(r.requests.Load()).To(Equal(tc.requests))
			if first := <-r.ids; tc.requests > 1 {
				g.Expect(<-r.ids).To(Equal(first), "the receiver can recognize a repeated request")
			}
			if err != nil {
				g.Expect(err.Error()).NotTo(ContainSubstring("SECRET"))
			}
		})
	}
}

func TestWebhook_KeepsTheURLOutOfErrors(t *testing.T) {
	g := NewWithT(t)
	r := newReceiver(t)
	w := r.webhook(g, "")
	r.Close()
	err := w.Send(t.Context(), newMessage(questions(1), false))
	g.Expect(err).To(MatchError(ContainSubstring("refused")))
	g.Expect(err.Error() + w.String()).NotTo(ContainSubstring("SECRET"))
}

func TestNewWebhook_RefusesOtherURLsAndTemplates(t *testing.T) {
	g := NewWithT(t)
	for _, address := range []string{"http://example.com/SECRET", "http://10.0.0.1/SECRET", "ftp://127.0.0.1/SECRET", "file:///SECRET", "SECRET", "://SECRET", "http://127.0.0.1.example.com/SECRET", "https://"} {
		_, err := NewWebhook(address, "")
		g.Expect(err).To(MatchError(ContainSubstring("URL of the webhook")), address)
		g.Expect(err.Error()).NotTo(ContainSubstring("SECRET"))
	}
	for _, address := range []string{"https://example.com/a", "http://127.0.0.1:80/", "http://[::1]/", "http://localhost/"} {
		_, err := NewWebhook(address, "")
		g.Expect(err).NotTo(HaveOccurred(), address)
	}
	for _, body := range []string{"{{", "{{.Missing}}", `{{printf "%70000d" 1}}`} {
		_, err := NewWebhook("https://example.com/", body)
		g.Expect(err).To(MatchError(HavePrefix("template of the webhook: ")), body)
	}
	g.Expect(onlyLoopback("tcp", "192.0.2.1:80", nil)).To(HaveOccurred(), "a name that resolves to another address")
}

// Two destinations have two memories, although messages name them in the same way.
func TestSenders_HaveDifferentDestinations(t *testing.T) {
	g := NewWithT(t)
	first, err := NewWebhook("https://chat.example.com/hooks/a", "")
	g.Expect(err).NotTo(HaveOccurred())
	second, err := NewWebhook("https://chat.example.com/hooks/b", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.String()).To(Equal(second.String()))
	g.Expect(first.Destination()).NotTo(Equal(second.Destination()))
	one, other := &Command{Argv: []string{"sh", "-c", "a b"}}, &Command{Argv: []string{"sh", "-c", "a", "b"}}
	g.Expect(one.String()).To(Equal(other.String()))
	g.Expect(one.Destination()).NotTo(Equal(other.Destination()))
}
