// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint serves the output and the terminals of processes over HTTPS, because the API server stores neither. For a Pod, clients ask the API server.
//
// The API server decides about access: every request carries a bearer token, which the endpoint verifies with a TokenReview, or a client certificate, which the
// endpoint verifies with the certificate authority of the API server. The requested access is checked with a SubjectAccessReview (get on devservers/log, create
// on instances/attach). The server always uses TLS, also on loopback, with a certificate that clients read from the Lease of the host. Another program on the
// machine therefore cannot take over the port and collect tokens.
package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
)

const (
	// Namespace is the default namespace of the installation, where clients look up the endpoint.
	Namespace = "berth-system"

	shutdownGrace = 5 * time.Second

	verbose = slog.Level(-1) // verbosity 1 of logr
)

// Options configure a Server.
type Options struct {
	// Address is the address to listen on. Empty means 127.0.0.1 with a free port. An address beyond loopback requires a certificate.
	Address string
	// CertFile and KeyFile contain the certificate to serve with and its key. If empty, New creates a certificate for loopback.
	CertFile, KeyFile string
	// Namespace is the namespace of the installation, which is part of the audience of tokens. Empty means the constant Namespace.
	Namespace string
	// Host is the name of the host whose objects the endpoint serves; empty if the manager runs no processes on a machine.
	Host string
	// Client creates reviews.
	Client client.Client
	// Reader reads objects. It should not be a cache, because a cache learns of new objects with a delay.
	Reader client.Reader
	// Instances is the cache of the manager. Requests that wait for an Instance read it.
	Instances Instances
	// Runtimes are the backends that provide the output and the terminals of processes.
	Runtimes *runtime.Registry
	// Presence records the use of terminals; required.
	Presence *activity.Tracker
	Log      logr.Logger
}

// Server is the endpoint. It is a manager.Runnable that runs only on the leader.
type Server struct {
	opts     Options
	listener net.Listener
	tls      *tls.Config
	ca       []byte            // certificate authority that clients trust, in PEM format
	typing   keymutex.KeyMutex // by UID; keeps the input of concurrent requests from being mixed

	waiting waiting           // requests that wait for an Instance
	tasks   *background.Tasks // requests
}

// New validates the options and starts to listen; Start serves requests. A server that was never started must be closed with Close.
func New(opts Options) (*Server, error) {
	if opts.Address == "" {
		opts.Address = "127.0.0.1:0"
	}
	opts.Namespace = cmp.Or(opts.Namespace, Namespace)
	host, _, err := net.SplitHostPort(opts.Address)
	if err != nil {
		return nil, fmt.Errorf("endpoint address %q: %w", opts.Address, err)
	}
	if (opts.CertFile == "") != (opts.KeyFile == "") {
		return nil, errors.New("the endpoint needs a certificate and its key: set both files or neither")
	}
	if opts.CertFile == "" && !loopback(host) {
		return nil, fmt.Errorf("the endpoint does not listen on %s without a certificate: set one, or listen on 127.0.0.1", opts.Address)
	}
	s := &Server{opts: opts, typing: keymutex.NewHashed(0), tasks: background.New(), waiting: waiting{requests: map[chan struct{}]types.UID{}}}
	if err := s.waiting.follow(opts.Instances); err != nil {
		return nil, err
	}
	opts.Presence.OnRise(s.waiting.notify)
	if s.tls, s.ca, err = certificate(opts); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", opts.Address); err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	return s, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// url returns the address of the server.
func (s *Server) url() string { return "https://" + s.listener.Addr().String() }

// NeedLeaderElection returns true, because a manager that does not lead serves nothing.
func (s *Server) NeedLeaderElection() bool { return true }

// Close closes a server that was not started.
func (s *Server) Close() error { return s.listener.Close() }

// Start serves until the context is done. All streams have ended when it returns.
func (s *Server) Start(ctx context.Context) error {
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errClosing)
	server := &http.Server{
		Handler:           s.handler(),
		TLSConfig:         s.tls,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(s.opts.Log), verbose), // mostly about clients that disconnected
		// An empty map disables HTTP/2, because connection upgrades need HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	s.opts.Log.Info("Serving logs and terminals", "url", s.url())
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(s.listener, "", "") }()
	var err error
	select {
	case err = <-served:
		cancel(errClosing)
	case <-ctx.Done():
		cancel(errClosing) // ends log streams and terminal connections, which do not end by themselves
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		if err = server.Shutdown(stop); err != nil {
			err = server.Close()
		}
		done()
		if late := <-served; err == nil {
			err = late
		}
	}
	s.tasks.Close()
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("endpoint: %w", err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	const object = "/v1/namespaces/{namespace}/{resource}/{name}"
	mux.HandleFunc("GET "+object+"/log", s.guarded("get", "log", s.serveLog))
	mux.HandleFunc("GET "+object+"/processes", s.guarded("get", "log", s.serveProcesses))
	mux.HandleFunc("POST "+object+"/attach", s.guarded("create", "attach", s.serveAttach))
	mux.HandleFunc("POST "+object+"/keys", s.guarded("create", "attach", s.serveKeys))
	return mux
}

// target is the object of a request.
type target struct {
	namespace, resource, name string
	object                    Hosted
	seen                      Seen
}

// inPod reports whether the object runs in a Pod. Clients reach its output and terminal through the API server, which checks the authorization.
func (t target) inPod() bool { return podspec.TypeOf(t.object) == v1alpha1.RuntimePod }

func (t target) String() string { return fmt.Sprintf("%s %s/%s", t.resource, t.namespace, t.name) }

// guarded returns a handler that calls next if the caller is authenticated and authorized and the object exists on this host. After the server has ended, it calls nothing: a
// connection that net/http has closed may still deliver the request that it had read.
func (s *Server) guarded(verb, subresource string, next func(http.ResponseWriter, *http.Request, target) *refusal) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, entered := s.tasks.Enter()
		if !entered {
			http.Error(w, errClosing.Error(), http.StatusServiceUnavailable)
			return
		}
		defer leave()
		t, refused := s.admit(r, verb, subresource)
		if refused == nil {
			refused = next(w, r, t)
		}
		if refused == nil {
			return
		}
		if refused.status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.Error(w, refused.message, refused.status)
	}
}

// admit returns the object of a request if the caller is authenticated and authorized and the object exists on this host.
func (s *Server) admit(r *http.Request, verb, subresource string) (target, *refusal) {
	t := target{namespace: r.PathValue("namespace"), resource: r.PathValue("resource"), name: r.PathValue("name")}
	if t.object = newObject(t.resource); t.object == nil {
		return t, refuse(http.StatusNotFound, "unknown resource %q: use devservers, instances, languageservers or strategyruns", t.resource)
	}
	var err error
	if t.seen, err = seenIn(r.URL.Query()); err != nil {
		return t, refuse(http.StatusBadRequest, "%v", err)
	}
	user, refused := s.authenticate(r)
	if refused == nil {
		refused = s.authorize(r.Context(), user, verb, subresource, t)
	}
	if refused != nil {
		return t, refused
	}
	err = s.opts.Reader.Get(r.Context(), client.ObjectKey{Namespace: t.namespace, Name: t.name}, t.object)
	if client.IgnoreNotFound(err) != nil {
		return t, s.failed(r.Context(), err, "Cannot read an object", t, refuse(http.StatusBadGateway, "the API server is not available; try again"))
	}
	if err != nil {
		return t, refuse(http.StatusNotFound, "%s does not exist", t)
	}
	if refused := s.elsewhere(t); refused != nil {
		return t, refused
	}
	return t, s.unseen(r.Context(), t)
}

// elsewhere refuses a request for an object whose process another host has: this host knows neither its output nor its terminal.
func (s *Server) elsewhere(t target) *refusal {
	if host := HostOf(t.object); host != "" && host != s.opts.Host && !t.inPod() {
		return refuse(http.StatusMisdirectedRequest, "%s belongs to host %q, and this is the manager of host %q: omit --endpoint, or specify the address of the manager of that host", t, host, s.opts.Host)
	}
	return nil
}

// HostOf returns the host that has the process of an object, or is to start it. It returns "" if there is none yet.
func HostOf(object Hosted) string {
	return cmp.Or(object.GetProcessStatus().HostName, object.GetLabels()[v1alpha1.LabelHost])
}

// Hosted is an object of a kind that has processes.
type Hosted interface {
	client.Object
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// runtimeOf returns the backend of an Instance, and the default backend for objects of other kinds: clients read the output of Pods from the API server.
func (s *Server) runtimeOf(t target) runtime.Runtime {
	if instance, is := t.object.(*v1alpha1.Instance); is && instance.Spec.Runtime != nil {
		return s.opts.Runtimes.For(instance.Spec.Runtime.Type)
	}
	return s.opts.Runtimes.For("")
}

// newObject returns an empty object of a kind, or nil if the kind has no processes.
func newObject(resource string) Hosted {
	switch resource {
	case "devservers":
		return &v1alpha1.DevServer{}
	case "instances":
		return &v1alpha1.Instance{}
	case "languageservers":
		return &v1alpha1.LanguageServer{}
	case "strategyruns":
		return &v1alpha1.StrategyRun{}
	default:
		return nil
	}
}

// refusal is the response to a request that is not served.
type refusal struct {
	status  int
	message string
}

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// failed logs why a request failed, unless its client has gone, and returns the response, which does not contain the cause.
func (s *Server) failed(ctx context.Context, cause error, message string, t target, response *refusal) *refusal {
	if ctx.Err() == nil {
		s.opts.Log.Error(cause, message, "object", t.String())
	}
	return response
}
