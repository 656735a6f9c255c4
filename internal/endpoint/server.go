// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint serves what does not belong into the API server: the output of processes and their terminals.
//
// Who may have it is for the API server to say: every request carries a bearer token, which is put before it as a TokenReview, and what is asked for
// as a SubjectAccessReview (get on devservers/log, create on instances/attach). The server speaks TLS always, on loopback too, with a certificate
// that clients learn from a ConfigMap, so that nobody else on the machine can take the port and collect tokens.
package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/presence"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// Namespace is where clients look for the endpoint, unless the installation is elsewhere.
	Namespace = "berth-system"
	// ConfigMap is the name of the ConfigMap that holds the address and the certificate authority.
	ConfigMap = "berth-endpoint"

	shutdownGrace = 5 * time.Second
)

// Options says where to serve what.
type Options struct {
	// Address to listen on. Empty means 127.0.0.1 with a free port. Beyond loopback a certificate has to be given.
	Address string
	// CertFile and KeyFile are the certificate to serve with. Empty: one is made, for loopback.
	CertFile, KeyFile string
	// Namespace is where the address is published: that of the installation. Empty: Namespace, the constant.
	Namespace string
	// Client creates reviews and publishes the address.
	Client client.Client
	// Reader reads objects; it should not be a cache, which knows what was just created only later.
	Reader client.Reader
	// Runtimes are the backends with the output and the terminals of processes.
	Runtimes *runtime.Registry
	// Presence is where it is noted who comes; nil where nothing sleeps.
	Presence *presence.Book
	Log      logr.Logger
}

// Server is the endpoint. It is a manager.Runnable that runs where the leader runs.
type Server struct {
	opts     Options
	listener net.Listener
	tls      *tls.Config
	ca       []byte // what clients trust; empty when the system's authorities know the certificate
	streams  sync.WaitGroup
	typing   keymutex.KeyMutex // by UID: two who send at once do not mix their texts
}

// New checks the options and begins to listen; Start serves. Close ends what was never started.
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
		return nil, errors.New("the endpoint needs a certificate and its key: give both files or none")
	}
	if opts.CertFile == "" && !loopback(host) {
		return nil, fmt.Errorf("the endpoint does not listen on %s without a certificate: give one, or listen on 127.0.0.1", opts.Address)
	}
	s := &Server{opts: opts, typing: keymutex.NewHashed(0)}
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

// URL is where the server listens.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// NeedLeaderElection says that only one manager publishes its address.
func (s *Server) NeedLeaderElection() bool { return true }

// Close ends a server that is not started.
func (s *Server) Close() error { return s.listener.Close() }

// Start serves until the context ends, and publishes the address meanwhile. All streams have ended when it returns.
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
		ErrorLog:          errorLog(s.opts.Log),
		// Upgrades need HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	published := make(chan struct{})
	go func() {
		defer close(published)
		s.publish(base)
	}()
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(s.listener, "", "") }()
	var err error
	select {
	case err = <-served:
		cancel(errClosing)
	case <-ctx.Done():
		cancel(errClosing) // ends followers and terminals, which would not end by themselves
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		if err = server.Shutdown(stop); err != nil {
			err = server.Close()
		}
		done()
		if late := <-served; err == nil {
			err = late
		}
	}
	s.streams.Wait()
	<-published
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("endpoint: %w", err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/namespaces/{namespace}/{resource}/{name}/log", s.guarded("get", "log", s.serveLog))
	mux.HandleFunc("POST /v1/namespaces/{namespace}/{resource}/{name}/attach", s.guarded("create", "attach", s.serveAttach))
	mux.HandleFunc("POST /v1/namespaces/{namespace}/{resource}/{name}/input", s.guarded("create", "attach", s.serveInput))
	return mux
}

// target is the object that a request is about.
type target struct {
	namespace, resource, name string
	object                    client.Object
}

// inPod reports whether the object runs in a Pod. Its terminal is reached through the API server, which checks who may do so.
func (t target) inPod() bool {
	instance, is := t.object.(*v1alpha1.Instance)
	return is && instance.Spec.Runtime != nil && instance.Spec.Runtime.Type == v1alpha1.RuntimePod
}

func (t target) String() string { return fmt.Sprintf("%s %s/%s", t.resource, t.namespace, t.name) }

// guarded lets a request through when the API server knows who asks and says that they may, and the object is there.
func (s *Server) guarded(verb, subresource string, next func(http.ResponseWriter, *http.Request, target)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.streams.Add(1)
		defer s.streams.Done()
		t := target{namespace: r.PathValue("namespace"), resource: r.PathValue("resource"), name: r.PathValue("name")}
		var err error
		if t.object, err = newObject(t.resource); err != nil {
			refuse(w, http.StatusNotFound, err)
			return
		}
		user, status, err := s.authenticate(r)
		if err != nil {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			refuse(w, status, err)
			return
		}
		if status, err := s.authorize(r.Context(), user, verb, subresource, t); err != nil {
			refuse(w, status, err)
			return
		}
		err = s.opts.Reader.Get(r.Context(), client.ObjectKey{Namespace: t.namespace, Name: t.name}, t.object)
		if client.IgnoreNotFound(err) != nil {
			s.opts.Log.Error(err, "cannot read an object", "object", t.String())
			refuse(w, http.StatusBadGateway, errors.New("the API server cannot be asked at the moment"))
			return
		}
		if err != nil {
			refuse(w, http.StatusNotFound, fmt.Errorf("%s does not exist", t))
			return
		}
		next(w, r, t)
	}
}

// runtimeOf returns the backend of the object.
func (s *Server) runtimeOf(t target) runtime.Runtime {
	if instance, is := t.object.(*v1alpha1.Instance); is && instance.Spec.Runtime != nil {
		return s.opts.Runtimes.For(instance.Spec.Runtime.Type)
	}
	return s.opts.Runtimes.For("")
}

func newObject(resource string) (client.Object, error) {
	switch resource {
	case "devservers":
		return &v1alpha1.DevServer{}, nil
	case "instances":
		return &v1alpha1.Instance{}, nil
	case "languageservers":
		return &v1alpha1.LanguageServer{}, nil
	case "strategyruns":
		return &v1alpha1.StrategyRun{}, nil
	default:
		return nil, fmt.Errorf("there is no resource %q: use devservers, instances, languageservers or strategyruns", resource)
	}
}

// refuse answers with one line of text for people.
func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, err.Error(), status)
}
