// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/devproxy"
)

// forward returns a handler that forwards requests to the Service at address through the API server. The handler reaches nothing else in the cluster.
func forward(config *rest.Config, namespace string, address *url.URL) (http.Handler, error) {
	base, transport, err := upgradable(config)
	if err != nil {
		return nil, err
	}
	prefix := proxyPath(base, namespace, address)
	f := &forwarding{base: base, prefix: prefix}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: f.rewrite, Transport: transport, ModifyResponse: f.relocate, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "Cannot reach the API server: "+err.Error(), http.StatusBadGateway)
		},
	}
	return f, nil
}

// upgradable returns the URL of an API server and a transport on which a request can be upgraded, to a WebSocket or to the stream of a language server.
func upgradable(config *rest.Config) (*url.URL, http.RoundTripper, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	return base, transport, nil
}

// forwarding forwards requests to one Service through an API server.
type forwarding struct {
	base   *url.URL
	prefix string // of the path on the API server
	proxy  *httputil.ReverseProxy
}

// ServeHTTP forwards a request to the Service. It rejects requests from web pages of other sites, which must not use the rights of the user: see
// devproxy.CheckHost.
func (f *forwarding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := devproxy.CheckHost(r, nil); err != nil {
		http.Error(w, "Forbidden: "+err.Error()+". This address only serves this machine: use 127.0.0.1 or localhost.", http.StatusForbidden)
		return
	}
	if slices.Contains(strings.Split(r.URL.Path, "/"), "..") {
		http.Error(w, "The path must not contain '..'.", http.StatusBadRequest)
		return
	}
	f.proxy.ServeHTTP(w, r)
}

// rewrite converts a request from a browser into a request to the API server. It removes the credentials of the browser; the transport adds those of the user.
func (f *forwarding) rewrite(r *httputil.ProxyRequest) {
	for name := range r.Out.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			r.Out.Header.Del(name)
		}
	}
	path, raw := f.strip(r.In.URL.Path), f.strip(r.In.URL.EscapedPath())
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = f.base.Scheme, f.base.Host, ""
	r.Out.URL.Path, r.Out.URL.RawPath = f.prefix+path, f.prefix+raw
	r.Out.URL.RawQuery = r.In.URL.RawQuery
}

// relocate removes the prefix that the API server added to the path in a Location header.
func (f *forwarding) relocate(response *http.Response) error {
	location, err := url.Parse(response.Header.Get("Location"))
	if err == nil && location.Path != f.strip(location.Path) {
		location.Scheme, location.Host, location.User = "", "", nil
		location.Path, location.RawPath = f.strip(location.Path), ""
		response.Header.Set("Location", location.String())
	}
	return nil
}

// strip removes the prefix from a path. The API server adds the prefix to the links in pages.
func (f *forwarding) strip(path string) string {
	if rest, found := strings.CutPrefix(path, f.prefix); found && (rest == "" || rest[0] == '/') {
		return "/" + strings.TrimPrefix(rest, "/")
	}
	return path
}
