// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"
)

// HeaderReason is the response header that contains the reason why a request was rejected: the reason of a condition of the object, or a reason of the proxy.
const HeaderReason = "Berth-Reason"

// handler returns the HTTP handler of an address: a reverse proxy that counts responses. The handler rejects requests that CheckHost does not permit, and all
// requests after the address was closed.
func (a *address) handler() http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      a,
		ModifyResponse: counted,
		BufferPool:     &buffers,
		ErrorHandler:   a.fail,
		ErrorLog:       silent,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := CheckHost(r, *a.hosts.Load()); err != nil {
			a.forbid(w, err)
			return
		}
		if !a.enter() {
			a.fail(w, r, refuse(a.state.Load(), ""))
			return
		}
		defer func() {
			if b := a.retired.Load(); b != nil {
				b.rest()
			}
			a.handlers.Done()
		}()
		// A server may respond before it has read the body. Without full duplex, net/http would then close the body, and the transport would close the connection
		// to the server.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(unchanged{w}, r)
	})
}

// unchanged prevents net/http from adding headers that the server did not send.
type unchanged struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It drops the 100 Continue of the server: net/http sends its own when the body is first read, which happens only
// after the server has sent 100 Continue or continueTime has passed. It also prevents net/http from adding Content-Type and Date if the server did not send
// them.
func (w unchanged) WriteHeader(status int) {
	if status == http.StatusContinue {
		return
	}
	if header := w.Header(); status >= http.StatusOK {
		for _, name := range []string{"Content-Type", "Date"} {
			if header[name] == nil {
				header[name] = nil
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap supports http.ResponseController.
func (w unchanged) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// counted counts a response and does not change it.
func counted(response *http.Response) error {
	countAnswer(response.StatusCode)
	return nil
}

// rewrite preserves the query, and the Host header, because some servers accept only the hosts that they know. It also preserves the forwarding headers of an
// outer proxy. They can be trusted, because every client of this address is on this machine.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	r.SetXForwarded()
	for _, name := range []string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if said, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = said
		}
	}
}

// refusal is the error for a request that is not forwarded.
type refusal struct {
	reason Reason
	detail string
}

func (r *refusal) Error() string {
	text := r.reason.Reason
	if r.reason.Message != "" {
		text += ": " + r.reason.Message
	}
	if r.detail != "" {
		text += " (" + r.detail + ")"
	}
	return text
}

func refuse(s *state, detail string) *refusal {
	r := &refusal{reason: s.reason, detail: detail}
	if s.phase == open {
		r.reason = Reason{Reason: "Restarting", Message: "the connection to the server was lost"}
	}
	return r
}

// retryAfter is the default of the Retry-After header, in seconds.
const retryAfter = 1

// fail responds to a request that the server did not respond to.
func (a *address) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && a.ctx.Err() == nil {
		return // the client has disconnected
	}
	var refused *refusal
	status, text := http.StatusBadGateway, ""
	if errors.As(err, &refused) {
		status = http.StatusServiceUnavailable
		text = fmt.Sprintf("%s is not available: %s\n", a.name, refused)
		seconds := retryAfter
		if left := time.Until(refused.reason.Until); left > 0 {
			seconds = int(left/time.Second) + 1
		}
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		w.Header().Set(HeaderReason, refused.reason.Reason)
	} else {
		text = fmt.Sprintf("%s closed the connection without a response; it is unknown whether the request took effect: %s\n", a.name, err)
		w.Header().Set(HeaderReason, "Interrupted")
	}
	reply(w, status, text)
}

// forbid responds to a request that CheckHost rejects. The text may reach the page of another site, so it does not name the object.
func (a *address) forbid(w http.ResponseWriter, err error) {
	var why *forbidden
	if errors.As(err, &why) {
		w.Header().Set(HeaderReason, why.reason)
	}
	reply(w, http.StatusForbidden, fmt.Sprintf("Forbidden: %s.\nUse http://127.0.0.1:%d or http://localhost:%d, or add the name to spec.allowedHosts of the DevServer.\n",
		err, a.port.Load(), a.port.Load()))
}

// reply sends a response of plain text.
func reply(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	countAnswer(status)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// buffers are the buffers for copying bodies.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, bufferSize)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
