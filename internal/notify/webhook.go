// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// webhookTimeout bounds one request, webhookAttempts the requests for one message.
	webhookTimeout  = 10 * time.Second
	webhookAttempts = 3
	// maxPost bounds the body of a request, in bytes.
	maxPost = 64 << 10
)

// Webhook sends each message in a POST request.
type Webhook struct {
	url    *url.URL
	body   *template.Template // nil: the message as JSON
	client *http.Client
	delay  time.Duration // before the second attempt
}

// NewWebhook returns a sender for an https URL, or for an http URL of this machine. body is a template of package text/template for a Message; empty means the
// message as JSON. Errors do not contain the URL, which may be secret.
func NewWebhook(address, body string) (*Webhook, error) {
	parsed, err := url.Parse(strings.TrimSpace(address))
	if err != nil || parsed.Hostname() == "" {
		return nil, errors.New("the URL of the webhook is invalid")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	switch {
	case parsed.Scheme == "https":
	case parsed.Scheme == "http" && isLoopback(parsed.Hostname()):
		transport.Proxy, transport.DialContext = nil, (&net.Dialer{Control: onlyLoopback}).DialContext
	default:
		return nil, errors.New("the URL of the webhook must begin with https://, or be an http:// URL of a loopback address")
	}
	w := &Webhook{url: parsed, delay: time.Second, client: &http.Client{
		Timeout: webhookTimeout, Transport: transport,
		// A redirect could lead to another host, which must not receive the message.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if body != "" {
		w.body, err = template.New("body").Funcs(template.FuncMap{"json": toJSON}).Parse(body)
		if err == nil {
			_, err = w.post(newMessage([]Question{{Namespace: "default", Name: "instance/example", Reason: "AwaitingInput"}}, true))
		}
		if err != nil {
			return nil, fmt.Errorf("template of the webhook: %w", err)
		}
	}
	return w, nil
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// onlyLoopback refuses other addresses, because a name may have any.
func onlyLoopback(_, address string, _ syscall.RawConn) error {
	if host, _, err := net.SplitHostPort(address); err != nil || !net.ParseIP(host).IsLoopback() {
		return errors.New("not a loopback address")
	}
	return nil
}

func toJSON(value any) (string, error) {
	data, err := json.Marshal(value)
	return string(data), err
}

func (w *Webhook) String() string { return "webhook at " + w.url.Scheme + "://" + w.url.Host }

// Destination implements Sender.
func (w *Webhook) Destination() string { return "webhook " + w.url.String() }

// post returns the body of a request.
func (w *Webhook) post(m Message) ([]byte, error) {
	if w.body == nil {
		return json.Marshal(m)
	}
	text := &limited{}
	err := w.body.Execute(text, m)
	return text.Bytes(), err
}

// limited is a buffer of at most maxPost bytes.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(text []byte) (int, error) {
	if l.Len()+len(text) > maxPost {
		return 0, fmt.Errorf("the result has more than %d bytes", maxPost)
	}
	return l.Buffer.Write(text)
}

// Send implements Sender. It repeats a request that may succeed later.
func (w *Webhook) Send(ctx context.Context, m Message) error {
	body, err := w.post(m)
	if err != nil {
		return fmt.Errorf("template of the webhook: %w", err)
	}
	var failed error
	err = wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: w.delay, Factor: 2, Steps: webhookAttempts}, func(ctx context.Context) (bool, error) {
		var again bool
		if again, failed = w.try(ctx, m.ID, body); failed != nil && !again {
			return false, failed
		}
		return failed == nil, nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// try sends one request. again means that another one may succeed.
func (w *Webhook) try(ctx context.Context, id string, body []byte) (again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url.String(), bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the URL of the webhook is invalid")
	}
	kind := "text/plain; charset=utf-8"
	if json.Valid(body) {
		kind = "application/json"
	}
	request.Header.Set("Content-Type", kind)
	request.Header.Set("User-Agent", "berth")
	request.Header.Set("Idempotency-Key", id)
	response, err := w.client.Do(request)
	if err != nil {
		var of *url.Error // its text contains the URL
		if errors.As(err, &of) {
			err = of.Err
		}
		return true, err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.CopyN(io.Discard, response.Body, maxPost)
	switch code := response.StatusCode; {
	case code < 300:
		return false, nil
	case code < 400:
		return false, fmt.Errorf("the server redirects (status %d), and Berth does not follow", code)
	default:
		return code >= 500 || code == http.StatusTooManyRequests, fmt.Errorf("the server answers with status %d %s", code, http.StatusText(code))
	}
}
