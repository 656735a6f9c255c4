// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Client sends requests to an endpoint with the credentials of a kubeconfig.
type Client struct {
	base *url.URL
	http *http.Client
	host string // the host whose Lease contains the address or the certificate authority; empty if the caller specified both
	// patience bounds the wait for a response. It does not bound a stream after its response headers.
	patience patience
	seen     Seen
}

// patience is how long a client waits for a manager.
type patience struct {
	// connect bounds setting up the connection, including TLS. A suspended manager never completes it.
	connect time.Duration
	// answer bounds the wait for the response headers after the connection is set up.
	answer time.Duration
}

// defaultPatience bounds a request that the manager can answer after a few reads from the API server.
var defaultPatience = patience{connect: 5 * time.Second, answer: 10 * time.Second}

// wakePatience bounds the wait for a response if the manager may first have to start a sleeping process or type input.
const wakePatience = wakeWithin + typeTime + 10*time.Second

// Object identifies the object of a request. Resource is the plural name of its kind.
type Object struct{ Namespace, Resource, Name string }

// FindOptions select the manager that a client uses, and the address that it trusts with its token.
type FindOptions struct {
	// Host is the name of the host whose manager to use. Empty means the only host that reports.
	Host string
	// Namespace is the namespace of the Leases of the hosts, which contain the addresses of their managers. Empty means the constant Namespace.
	Namespace string
	// URL is the address to use. Empty means the published address, which must be on loopback.
	URL string
	// ServiceAccount is NAMESPACE/NAME of the service account whose token is sent to the manager. Empty means the user of the kubeconfig, if that user is a
	// service account.
	ServiceAccount string
	// CAFile contains the certificate authority to trust. Empty means the published one.
	CAFile string
}

// Find reads the address and the certificate authority of the endpoint from the Lease of its host and returns a client for it.
//
// A user who can write the Lease controls the address, and every client sends a bearer token there. Therefore Find returns an error for a published address
// that is not on loopback, unless the caller sets opts.URL.
func Find(ctx context.Context, config *rest.Config, api client.Client, opts FindOptions) (*Client, error) {
	base, ca, host, err := opts.locate(ctx, api)
	if err != nil {
		return nil, err
	}
	to := rest.CopyConfig(config)
	to.Host = base.String()
	to.APIPath = ""
	to.Timeout = 0
	// The endpoint needs only the credentials of the kubeconfig. Its other TLS settings apply to the API server and not to the endpoint.
	to.TLSClientConfig = rest.TLSClientConfig{
		CAData: ca, NextProtos: []string{"http/1.1"},
		CertData: config.CertData, CertFile: config.CertFile, KeyData: config.KeyData, KeyFile: config.KeyFile,
	}
	if err := opts.limitToken(ctx, to, api); err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(to)
	if err != nil {
		return nil, fmt.Errorf("reach the manager's endpoint: %w", err)
	}
	return &Client{base: base, http: &http.Client{Transport: transport, CheckRedirect: noRedirect}, host: host, patience: defaultPatience}, nil
}

// locate returns the address of the endpoint, the certificate authority to trust there, and the host that published one of them.
func (o FindOptions) locate(ctx context.Context, reader client.Reader) (base *url.URL, ca []byte, host string, err error) {
	if o.CAFile != "" {
		if ca, err = os.ReadFile(o.CAFile); err != nil {
			return nil, nil, "", fmt.Errorf("certificate authority of the manager's endpoint: %w", err)
		}
	}
	pinned := o.URL != ""
	if !pinned || o.CAFile == "" {
		var published hosts.Endpoint
		if host, published, err = o.published(ctx, reader); err != nil {
			return nil, nil, "", err
		}
		if o.CAFile == "" {
			ca = published.Authority
		}
		if !pinned {
			o.URL = published.URL
		}
	}
	base, err = url.Parse(o.URL)
	switch {
	case err != nil || base.Scheme != "https" || base.Hostname() == "":
		return nil, nil, "", fmt.Errorf("invalid address of the manager's endpoint %q: want https://HOST:PORT", o.URL)
	case !pinned && !loopback(base.Hostname()):
		return nil, nil, "", fmt.Errorf("the Lease of host %q in namespace %s names %q, which is not on this machine, so berth does not send your token there; "+
			"if you trust that address, pass it as --endpoint or in BERTH_ENDPOINT", host, o.namespace(), o.URL)
	}
	return base, ca, host, nil
}

func (o FindOptions) namespace() string { return cmp.Or(o.Namespace, Namespace) }

// published returns the address that the manager of the host publishes. Without the name of a host there must be only one host that reports.
func (o FindOptions) published(ctx context.Context, reader client.Reader) (host string, found hosts.Endpoint, err error) {
	if o.Host != "" {
		found, err = hosts.EndpointOf(ctx, reader, o.namespace(), o.Host)
		if err == nil && found.URL == "" {
			err = fmt.Errorf("the Lease of host %q in namespace %s contains no address for logs and terminals: start berth up or berth manager on that host, "+
				"or name the namespace of its installation with --manager-namespace", o.Host, o.namespace())
		}
		return o.Host, found, err
	}
	all, err := hosts.Endpoints(ctx, reader, o.namespace(), time.Now())
	if err != nil {
		return "", found, fmt.Errorf("find the manager's endpoint: %w", err)
	}
	switch names := slices.Sorted(maps.Keys(all)); len(names) {
	case 0:
		return "", found, fmt.Errorf("no manager serves logs and terminals: no Lease in namespace %s contains its address; start berth up or berth manager, "+
			"or name the namespace of its installation with --manager-namespace", o.namespace())
	case 1:
		return names[0], all[names[0]], nil
	default:
		return "", found, fmt.Errorf("cannot tell which of the hosts %s has the process: the object names no host yet, or you may not read it; "+
			"see its conditions with berth status, or specify the address of the manager with --endpoint", strings.Join(names, ", "))
	}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// noRedirect prevents the token from being sent to another address.
func noRedirect(*http.Request, []*http.Request) error {
	return errors.New("the endpoint redirects the request, which is not allowed")
}

// LogOptions select a part of the output.
type LogOptions struct {
	Follow bool
	// Tail is a number of lines; a negative value selects all retained output. Ignored if Offset is set.
	Tail int64
	// Offset selects the output after this number of bytes of all output of the object. If that part is no longer retained, the response begins with the oldest
	// retained output.
	Offset *int64
}

// Stream is the output of an object.
type Stream struct {
	io.ReadCloser
	// Screen reports whether the stream is the current content of the terminal, because Berth does not retain the output of an adopted session. Such a stream
	// ends by itself.
	Screen bool
	// Offset is the number of bytes of output before the stream. It is 0 if Screen is true.
	Offset int64
	// Size is the size of the terminal when the stream was opened. It is zero if there is no terminal, or if its size is not known.
	Size runtime.Terminal
}

// Log opens the output of an object. The caller must close the stream; this also ends a stream that follows the output.
func (c *Client) Log(ctx context.Context, object Object, opts LogOptions) (*Stream, error) {
	query := url.Values{}
	if opts.Follow {
		query.Set("follow", "true")
	}
	switch {
	case opts.Offset != nil:
		query.Set("offset", strconv.FormatInt(*opts.Offset, 10))
	case opts.Tail >= 0:
		query.Set("tail", strconv.FormatInt(opts.Tail, 10))
	}
	response, err := c.send(ctx, request{method: http.MethodGet, object: object, subresource: "log", query: query, want: http.StatusOK, answer: c.patience.answer})
	if err != nil {
		return nil, err
	}
	offset, _ := strconv.ParseInt(response.Header.Get(headerOffset), 10, 64) // the header is missing if there is no output
	stream := &Stream{ReadCloser: response.Body, Screen: response.Header.Get(headerScreen) != "", Offset: offset}
	if _, err := fmt.Sscanf(response.Header.Get(headerTerminal), "%dx%d", &stream.Size.Columns, &stream.Size.Rows); err != nil {
		stream.Size = runtime.Terminal{}
	}
	return stream, nil
}

// Attach connects to the terminal of an object. size is the size of the window, or nil if unknown.
func (c *Client) Attach(ctx context.Context, object Object, size *runtime.Terminal) (*Conn, error) {
	conn, _, err := c.AttachCounted(ctx, object, size, CountedInput{})
	return conn, err
}

// AttachCounted does the same as Attach for input that is counted. counts is false if the manager is too old: then Inputs gets no state.
func (c *Client) AttachCounted(ctx context.Context, object Object, size *runtime.Terminal, input CountedInput) (conn *Conn, counts bool, err error) {
	query := url.Values{}
	input.addTo(query)
	if size != nil {
		query.Set("columns", strconv.Itoa(int(size.Columns)))
		query.Set("rows", strconv.Itoa(int(size.Rows)))
	}
	response, err := c.send(ctx, request{
		method: http.MethodPost, object: object, subresource: "attach", query: query, header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}},
		want: http.StatusSwitchingProtocols, answer: wakePatience,
	})
	if err != nil {
		return nil, false, err
	}
	raw, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		_ = response.Body.Close()
		return nil, false, errors.New("the connection cannot be written to")
	}
	return newConn(raw, nil), response.Header.Get(headerCounted) != "", nil
}

// request is a request of a client.
type request struct {
	method      string
	object      Object
	subresource string
	query       url.Values
	header      http.Header
	body        io.Reader
	want        int           // the status of a successful response
	answer      time.Duration // limits the wait for the response headers, counted from when the connection is set up
}

// send sends a request and waits for the response headers. It returns an error unless the response has the wanted status.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	target := c.base.JoinPath("v1", "namespaces", r.object.Namespace, r.object.Resource, r.object.Name, r.subresource)
	target.RawQuery = c.seen.in(r.query).Encode()
	ctx, cancel := context.WithCancelCause(ctx) // cancel also ends the response body
	late := time.AfterFunc(c.patience.connect, func() { cancel(errLate) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { late.Reset(r.answer) }})
	sent, err := http.NewRequestWithContext(ctx, r.method, target.String(), r.body)
	if err != nil {
		return nil, fmt.Errorf("send the request to the manager: %w", err)
	}
	maps.Copy(sent.Header, r.header)
	response, err := c.http.Do(sent)
	if !late.Stop() {
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, fmt.Errorf("the manager %s does not respond: is it suspended or overloaded? Check its process and its log, or restart it; "+
			"its processes keep running in the meantime", c.where())
	}
	var refused *net.OpError
	if errors.As(err, &refused) && refused.Op == "dial" {
		return nil, fmt.Errorf("the manager %s refuses the connection: is it running? Start it with berth up or berth manager; "+
			"if it runs on another machine, run this command there", c.where())
	}
	var stranger *tls.CertificateVerificationError
	if errors.As(err, &stranger) {
		return nil, fmt.Errorf("the program that answers is not the manager %s: if that manager runs on another machine, run this command there (%w)", c.where(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("send the request to the manager: %w", err)
	}
	if response.StatusCode != r.want {
		return nil, refusedBy(response)
	}
	return response, nil
}

// where returns the host and the address for errors.
func (c *Client) where() string {
	if c.host == "" {
		return "at " + c.base.String()
	}
	return fmt.Sprintf("of host %q at %s", c.host, c.base)
}

// errLate cancels a request that got no response in time.
var errLate = errors.New("no response in time")

// refusedBy returns the error that a response contains, and closes the response.
func refusedBy(response *http.Response) error {
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	message := strings.TrimSpace(string(text))
	if message == "" {
		message = "the manager responds with status " + response.Status
	}
	return errors.New(message)
}
