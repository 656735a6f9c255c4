// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/runtime"
)

// Client asks an endpoint with the credentials of a kubeconfig.
type Client struct {
	base *url.URL
	http *http.Client
}

// Object names what a client asks about; Resource is the plural.
type Object struct{ Namespace, Resource, Name string }

// Find reads from the API server where the endpoint is and how it is known, and makes a client for it.
func Find(ctx context.Context, config *rest.Config, reader client.Reader) (*Client, error) {
	published := &corev1.ConfigMap{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: ConfigMap}, published)
	if apierrors.IsNotFound(err) {
		return nil, errNotPublished
	}
	if err != nil {
		return nil, fmt.Errorf("find the manager's endpoint: %w", err)
	}
	base, err := url.Parse(published.Data[keyURL])
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("ConfigMap %s/%s holds no https address", Namespace, ConfigMap)
	}
	to := rest.CopyConfig(config)
	to.Host = base.String()
	to.APIPath = ""
	to.Timeout = 0
	// Only the token of the kubeconfig is for the endpoint; what the API server is known by is not what the endpoint is known by.
	to.TLSClientConfig = rest.TLSClientConfig{CAData: []byte(published.Data[keyCA]), NextProtos: []string{"http/1.1"}}
	transport, err := rest.TransportFor(to)
	if err != nil {
		return nil, fmt.Errorf("reach the manager's endpoint: %w", err)
	}
	return &Client{base: base, http: &http.Client{Transport: transport, CheckRedirect: noRedirect}}, nil
}

// Close gives up the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// noRedirect keeps the token from being sent anywhere else.
func noRedirect(*http.Request, []*http.Request) error {
	return errors.New("the endpoint tries to send the request elsewhere")
}

// LogOptions says which part of the output is wanted. Tail below 0 means all that is still there.
type LogOptions struct {
	Follow bool
	Tail   int64
}

// Stream is the output of an object.
type Stream struct {
	io.ReadCloser
	// Screen says that it is what the terminal shows now, because Berth does not keep the output: a session that was adopted. It has an end.
	Screen bool
}

// Log opens the output of an object. Closing it ends a stream that is followed.
func (c *Client) Log(ctx context.Context, object Object, opts LogOptions) (*Stream, error) {
	query := url.Values{}
	if opts.Follow {
		query.Set("follow", "true")
	}
	if opts.Tail >= 0 {
		query.Set("tail", strconv.FormatInt(opts.Tail, 10))
	}
	response, err := c.do(ctx, http.MethodGet, object, "log", query, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, refusal(response)
	}
	return &Stream{response.Body, response.Header.Get(HeaderScreen) != ""}, nil
}

// Attach connects to the terminal of an object. size is that of the window, when there is one.
func (c *Client) Attach(ctx context.Context, object Object, size *runtime.Terminal) (*Conn, error) {
	query := url.Values{}
	if size != nil {
		query.Set("columns", strconv.Itoa(int(size.Columns)))
		query.Set("rows", strconv.Itoa(int(size.Rows)))
	}
	response, err := c.do(ctx, http.MethodPost, object, "attach", query, http.Header{"Connection": {"Upgrade"}, "Upgrade": {Protocol}})
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(response)
	}
	raw, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		_ = response.Body.Close()
		return nil, errors.New("the connection cannot be written to")
	}
	return NewConn(raw, nil), nil
}

func (c *Client) do(ctx context.Context, method string, object Object, subresource string, query url.Values, header http.Header) (*http.Response, error) {
	return c.send(ctx, method, object, subresource, query, header, nil)
}

func (c *Client) send(
	ctx context.Context, method string, object Object, subresource string, query url.Values, header http.Header, body io.Reader,
) (*http.Response, error) {
	target := c.base.JoinPath("v1", "namespaces", object.Namespace, object.Resource, object.Name, subresource)
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask the manager: %w", err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := c.http.Do(request)
	var refused *net.OpError
	if errors.As(err, &refused) && refused.Op == "dial" {
		return nil, fmt.Errorf("the manager does not answer at %s: is it running? start it with berth up or berth manager", c.base)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the manager: %w", err)
	}
	return response, nil
}

func refusal(response *http.Response) error {
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	message := strings.TrimSpace(string(text))
	if message == "" {
		message = "the manager answers " + response.Status
	}
	return errors.New(message)
}
