// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// long is a timeout that no working probe reaches; short is the timeout for probes of a peer that does not respond.
const (
	long  = 30 * time.Second
	short = 200 * time.Millisecond
)

func runProbe(t *testing.T, run func(context.Context, time.Duration) outcome, timeout time.Duration) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return run(ctx, timeout)
}

func TestHTTP_DecidesByStatus(t *testing.T) {
	handler := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://192.0.2.1/never-asked")
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, strings.Repeat("x", 1<<20))
		}
	}
	for status, want := range map[int]struct{ ok, serving bool }{
		200: {true, true}, 204: {true, true}, 302: {true, true}, 404: {false, true}, 401: {false, true}, 500: {false, false}, 503: {false, false},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d secure=%v", status, secure), func(t *testing.T) {
				g := NewWithT(t)
				server := httptest.NewUnstartedServer(handler(status))
				if secure {
					server.StartTLS()
				} else {
					server.Start()
				}
				defer server.Close()
				strict := runProbe(t, (&HTTP{URL: server.URL + "/x"}).run, long)
				g.Expect(strict.ok).To(Equal(want.ok))
				if !want.ok {
					g.Expect(strict.message).To(Equal(fmt.Sprintf("GET %s/x returned status %d", server.URL, status)))
				}
				g.Expect(runProbe(t, (&HTTP{URL: server.URL + "/x", Serving: true}).run, long).ok).To(Equal(want.serving))
			})
		}
	}
}

func TestHTTP_IgnoresUnfinishedBody(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	g.Expect(runProbe(t, (&HTTP{URL: server.URL}).run, long).ok).To(BeTrue(), "the status is enough")
}

// startPeer accepts connections and passes each to serve.
func startPeer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			serve(connection)
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-stopped
	})
	return listener.Addr().String()
}

func TestHTTP_ReportsPeersWithoutHTTP(t *testing.T) {
	for name, tc := range map[string]struct {
		serve   func(net.Conn)
		timeout time.Duration
		serving outcome
		message string
	}{
		"another protocol": {
			serve: func(c net.Conn) {
				_, _ = fmt.Fprint(c, "SSH-2.0-something\r\n")
				_, _ = bufio.NewReader(c).ReadString('\n')
			},
			timeout: long, serving: outcome{ok: true}, message: "the response is not valid HTTP",
		},
		"closes": {
			serve:   func(c net.Conn) { _, _ = bufio.NewReader(c).ReadString('\n') },
			timeout: long, serving: outcome{mute: true}, message: "the connection was closed without a response",
		},
		"is silent": {
			serve: func(c net.Conn) {
				buffer := make([]byte, 4096)
				for {
					if _, err := c.Read(buffer); err != nil {
						return
					}
				}
			},
			timeout: short, serving: outcome{ok: true}, message: "no response within 200ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			url := "http://" + startPeer(t, tc.serve) + "/"
			strict := runProbe(t, (&HTTP{URL: url}).run, tc.timeout)
			g.Expect(strict).To(Equal(failed("GET " + url + ": " + tc.message)))
			serving := runProbe(t, (&HTTP{URL: url, Serving: true}).run, tc.timeout)
			g.Expect(serving.ok).To(Equal(tc.serving.ok))
			g.Expect(serving.mute).To(Equal(tc.serving.mute))
		})
	}
}

// unusedAddress is an address on which no program listens. It is not a free ephemeral port, because that could be assigned to another program during the test.
const unusedAddress = "127.0.0.1:1"

func TestProbes_ReportRefusedConnection(t *testing.T) {
	g := NewWithT(t)
	address := unusedAddress
	g.Expect(runProbe(t, (&HTTP{URL: "http://" + address, Serving: true}).run, long)).
		To(Equal(failed("GET http://" + address + ": connection refused")))
	g.Expect(runProbe(t, (&TCP{Address: address}).run, long)).To(Equal(failed("connecting to " + address + ": connection refused")))
}

func TestTCP_SucceedsOnConnection(t *testing.T) {
	g := NewWithT(t)
	g.Expect(runProbe(t, (&TCP{Address: startPeer(t, func(net.Conn) {})}).run, long).ok).To(BeTrue())
}

// fakeExecutor returns the result that a test sets.
type fakeExecutor struct {
	runtime.NoInspection
	exit facts.Exit
	err  error
}

func (e fakeExecutor) Exec(context.Context, runtime.Process) (facts.Exit, error) {
	return e.exit, e.err
}

func TestExec_ReportsExitsAndErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		fakeExecutor
		want outcome
	}{
		"exit code 0":   {fakeExecutor{}, outcome{ok: true}},
		"exit code 1":   {fakeExecutor{exit: facts.Exit{Known: true, Code: 1}}, failed(`"check" ended with exit code 1`)},
		"signal":        {fakeExecutor{exit: facts.Exit{Known: true, Signal: "SIGKILL"}}, failed(`"check" was terminated by SIGKILL`)},
		"not found":     {fakeExecutor{err: &facts.StartError{Reason: "CommandNotFound", Message: "/a/b"}}, failed(`"check" could not be started: not found in PATH`)},
		"denied":        {fakeExecutor{err: &facts.StartError{Reason: "PermissionDenied"}}, failed(`"check" could not be started: permission denied`)},
		"no directory":  {fakeExecutor{err: &facts.StartError{Reason: "WorkingDirMissing"}}, failed(`"check" could not be started: the working directory does not exist`)},
		"cannot start":  {fakeExecutor{err: &facts.StartError{Reason: "StartFailed", Message: "no memory"}}, failed(`"check" could not be started: no memory`)},
		"timeout":       {fakeExecutor{err: context.DeadlineExceeded}, failed(`"check" did not exit within 30s`)},
		"unkillable":    {fakeExecutor{err: runtime.ErrNotEnded}, failed(`"check" did not exit within 30s or after SIGKILL`)},
		"other failure": {fakeExecutor{err: errors.New("no memory")}, failed(`"check": no memory`)},
	} {
		t.Run(name, func(t *testing.T) {
			check := &Exec{Inspection: tc.fakeExecutor, Process: runtime.Process{Command: []string{"check"}}}
			NewWithT(t).Expect(runProbe(t, check.run, long)).To(Equal(tc.want))
		})
	}
	g := NewWithT(t)
	g.Expect(runProbe(t, (&Exec{Inspection: fakeExecutor{}}).run, long).ok).To(BeFalse(), "no command")
	g.Expect(runProbe(t, (&Exec{Process: runtime.Process{Command: []string{"check"}}}).run, long).message).To(ContainSubstring("does not support exec probes"))
}
