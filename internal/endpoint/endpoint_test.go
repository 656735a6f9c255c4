// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	good    = "a-good-token"
	timeout = 30 * time.Second
)

var (
	web   = Object{"default", "devservers", "web"}
	shell = Object{"default", "instances", "shell"}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryLog is a log in memory. Output before the offset first is discarded.
type memoryLog struct {
	mu     sync.Mutex
	data   []byte
	first  int64
	closed bool
	more   chan struct{}
}

func newLog(text string) *memoryLog { return &memoryLog{data: []byte(text), more: make(chan struct{})} }

func (l *memoryLog) append(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, text...)
	close(l.more)
	l.more = make(chan struct{})
}

func (l *memoryLog) remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.more)
	l.more = make(chan struct{})
}

func (l *memoryLog) Bounds() (int64, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, int64(len(l.data)), nil
}

func (l *memoryLog) ReadAt(p []byte, at int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at < l.first {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, l.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (l *memoryLog) Wait(ctx context.Context, at int64) error {
	for {
		l.mu.Lock()
		more, closed, end := l.more, l.closed, int64(len(l.data))
		l.mu.Unlock()
		if closed {
			return runtime.ErrNotFound
		}
		if end > at {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
	}
}

func (l *memoryLog) Close() error { return nil }

// stub is a runtime with output and an echoing terminal.
type stub struct {
	runtime.NoRuntime
	runtime.NoLogs
	runtime.NoTerminals
	mu     sync.Mutex
	logs   map[types.UID]*memoryLog
	phase  facts.Phase
	sizes  chan runtime.Terminal
	attach func(ctx context.Context, in io.Reader, out io.Writer) error
	typed  []byte
	deaf   error
	screen string
	size   runtime.Terminal
	// restarts is how often each process was restarted.
	restarts atomic.Int64
}

func (s *stub) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: s, Terminals: s}
}

func (s *stub) Capture(_ context.Context, uid types.UID) (terminal.View, error) {
	if s.screen == "" {
		return terminal.View{}, runtime.ErrNotFound
	}
	return terminal.View{Text: string(uid) + ": " + s.screen}, nil
}

func (s *stub) Size(context.Context, types.UID) (runtime.Terminal, error) { return s.size, nil }

func (s *stub) Type(_ context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf == nil {
		s.typed = append(append(s.typed, uid...), strokes.Bytes()...)
	}
	return s.deaf
}

func (s *stub) OpenLog(_ context.Context, uid types.UID) (runtime.Log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if log := s.logs[uid]; log != nil {
		return log, nil
	}
	return nil, runtime.ErrNotFound
}

func (s *stub) Observe(_ context.Context, uid types.UID) ([]facts.Incarnation, error) {
	return []facts.Incarnation{{UID: string(uid), Number: 1 + s.restarts.Load(), Phase: s.phase}}, nil
}

func (s *stub) Attach(ctx context.Context, _ types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case size := <-resize:
				s.sizes <- size
			}
		}
	}()
	return s.attach(ctx, in, out)
}

type fixture struct {
	server *Server
	api    client.WithWatch
	stub   *stub
	book   *activity.Tracker
	// allow decides about requests of "ann"; review, if set, decides about all requests.
	allow, review func(authorizationv1.SubjectAccessReviewSpec) bool
	stop          func()
	instances     *instances
	reads         atomic.Int32 // of Instances, from the API server
	mu            sync.Mutex
	asked         []authorizationv1.ResourceAttributes
}

// instances is a cache that always has the newest objects.
type instances struct {
	client.Reader
	*controllertest.FakeInformer
}

func (i *instances) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return i.FakeInformer, nil
}

// newFixture serves a DevServer named "web" and an Instance named "shell". The constant good is a token of the user "ann".
func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	scheme := k8sruntime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	f := &fixture{stub: &stub{logs: map[types.UID]*memoryLog{}, phase: facts.Running, sizes: make(chan runtime.Terminal, 16)}}
	f.allow = func(authorizationv1.SubjectAccessReviewSpec) bool { return true }
	f.api = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{Create: f.create}).WithObjects(
		&v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"}},
		&v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shell", UID: "uid-shell"}},
		newInstanceOn("own", "here", ""), newInstanceOn("away", "there", "here"), newInstanceOn("placed", "", "there"),
	).Build()
	f.instances = &instances{f.api, controllertest.NewFakeInformer(controllertest.Synced)}
	counted := interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if _, is := object.(*v1alpha1.Instance); is {
				f.reads.Add(1)
			}
			return api.Get(ctx, key, object, opts...)
		},
	})
	var err error
	f.book = activity.New(nil)
	f.server, err = New(Options{Client: f.api, Reader: counted, Instances: f.instances, Runtimes: runtime.NewRegistry(f.stub, logr.Discard()), Presence: f.book, Host: "here", Log: logr.Discard()})
	g.Expect(err).NotTo(HaveOccurred())
	f.publish(t, "here", f.server.Address())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.server.Start(ctx) }()
	var once sync.Once
	f.stop = func() {
		once.Do(func() {
			cancel()
			NewWithT(t).Eventually(ended, timeout).Should(Receive(BeNil()))
		})
	}
	t.Cleanup(f.stop)
	return f
}

// newInstanceOn returns an Instance whose process a host has, and whose label names a host.
func newInstanceOn(name, host, label string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{v1alpha1.LabelHost: label}}}
	instance.Status.HostName = host
	return instance
}

// publish publishes an address as the manager of a host does.
func (f *fixture) publish(t *testing.T, host string, at hosts.Endpoint) {
	t.Helper()
	NewWithT(t).Expect(hosts.New(hosts.Options{
		Name: host, Namespace: Namespace, Client: f.api, Reader: f.api, Clock: clock.RealClock{}, Endpoint: func() hosts.Endpoint { return at },
	}).Acquire(t.Context())).To(Succeed())
}

func (f *fixture) create(ctx context.Context, api client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		review.Status.Authenticated = review.Spec.Token == good
		review.Status.User = authenticationv1.UserInfo{Username: "ann", Groups: []string{"people"}}
		return nil
	case *authorizationv1.SubjectAccessReview:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked = append(f.asked, *review.Spec.ResourceAttributes)
		review.Status.Allowed = review.Spec.User == "ann" && len(review.Spec.Groups) == 1 && f.allow(review.Spec)
		if f.review != nil {
			review.Status.Allowed = f.review(review.Spec)
		}
		return nil
	default:
		return api.Create(ctx, object, opts...)
	}
}

// client finds the endpoint as the command berth does.
func (f *fixture) client(t *testing.T, token string) *Client {
	t.Helper()
	g := NewWithT(t)
	found, err := Find(t.Context(), &rest.Config{BearerToken: token}, f.api, FindOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(found.Close)
	return found
}

func (f *fixture) log(t *testing.T, opts LogOptions) string {
	t.Helper()
	g := NewWithT(t)
	stream, err := f.client(t, good).Log(t.Context(), web, opts)
	g.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(stream)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stream.Close()).To(Succeed())
	return string(text)
}

func TestServer_AuthorizesRequests(t *testing.T) {
	f := newFixture(t)
	f.allow = func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		return spec.ResourceAttributes.Namespace == "default"
	}
	f.stub.logs["uid-web"] = newLog("hello\n")
	for name, test := range map[string]struct {
		token, path, method string
		header              http.Header
		status              int
		says                string
	}{
		"allowed":                   {token: good, path: "/v1/namespaces/default/devservers/web/log", status: 200, says: "hello"},
		"no token":                  {path: "/v1/namespaces/default/devservers/web/log", status: 401, says: "no bearer token"},
		"wrong token":               {token: "bad", path: "/v1/namespaces/default/devservers/web/log", status: 401, says: "rejects this token"},
		"forbidden":                 {token: good, path: "/v1/namespaces/other/devservers/web/log", status: 403, says: "may not get devservers/log"},
		"forbidden, missing object": {token: good, path: "/v1/namespaces/other/devservers/none/log", status: 403, says: "may not"},
		"attach forbidden":          {token: good, method: "POST", path: "/v1/namespaces/other/instances/shell/attach", status: 403, says: "may not create instances/attach"},
		"impersonation":             {token: good, path: "/v1/namespaces/default/devservers/web/log", header: http.Header{"Impersonate-User": {"bob"}}, status: 403, says: "impersonation"},
		"missing object":            {token: good, path: "/v1/namespaces/default/devservers/none/log", status: 404, says: "devservers default/none does not exist"},
		"no such resource":          {token: good, path: "/v1/namespaces/default/pods/web/log", status: 404, says: "use devservers, instances, languageservers or strategyruns"},
		"no such path":              {token: good, path: "/v1/namespaces/default/devservers/web", status: 404},
		"bad tail":                  {token: good, path: "/v1/namespaces/default/devservers/web/log?tail=-1", status: 400, says: "not negative"},
		"tail and offset":           {token: good, path: "/v1/namespaces/default/devservers/web/log?tail=1&offset=1", status: 400, says: "not both"},
		"keys forbidden":            {token: good, method: "POST", path: "/v1/namespaces/other/instances/shell/keys", status: 403, says: "may not create instances/attach"},
		"no upgrade":                {token: good, method: "POST", path: "/v1/namespaces/default/instances/shell/attach", status: 426, says: "upgrade"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			request, err := http.NewRequestWithContext(t.Context(), test.method, f.server.url()+test.path, nil)
			g.Expect(err).NotTo(HaveOccurred())
			if test.header != nil {
				request.Header = test.header
			}
			if test.token != "" {
				request.Header.Set("Authorization", "Bearer "+test.token)
			}
			raw := f.client(t, "").http // without a token
			response, err := raw.Do(request)
			g.Expect(err).NotTo(HaveOccurred())
			body, err := io.ReadAll(response.Body)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(response.Body.Close()).To(Succeed())
			g.Expect(response.StatusCode).To(Equal(test.status), string(body))
			g.Expect(string(body)).To(ContainSubstring(test.says))
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	NewWithT(t).Expect(f.asked).To(ContainElement(authorizationv1.ResourceAttributes{
		Group: "berth.dev", Version: "v1alpha1", Resource: "devservers", Subresource: "log", Verb: "get", Namespace: "default", Name: "web"}))
}

func TestNew_RejectsInvalidListenOptions(t *testing.T) {
	for name, test := range map[string]struct {
		opts Options
		says string
	}{
		"all addresses, no certificate": {Options{Address: ":0"}, "without a certificate"},
		"no port":                       {Options{Address: "127.0.0.1"}, "missing port"},
		"key without certificate":       {Options{KeyFile: "x"}, "both files or neither"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(test.opts)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestFind_ErrorsNameNextStep(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	caller := f.client(t, good)
	f.stop()
	_, err := caller.Log(t.Context(), web, LogOptions{Tail: -1})
	g.Expect(err).To(MatchError(ContainSubstring("is it running?")))
	g.Expect(err).To(MatchError(ContainSubstring(`the manager of host "here" at https://127.0.0.1:`)))
	f.publish(t, "here", hosts.Endpoint{})
	_, err = Find(t.Context(), &rest.Config{}, f.api, FindOptions{})
	g.Expect(err).To(MatchError(ContainSubstring("berth up")))
	_, err = Find(t.Context(), &rest.Config{}, f.api, FindOptions{Host: "here"})
	g.Expect(err).To(MatchError(And(ContainSubstring(`the Lease of host "here"`), ContainSubstring("berth up or berth manager on that host"))))
	_, err = Find(t.Context(), &rest.Config{}, f.api, FindOptions{Host: "none"})
	g.Expect(err).To(MatchError(ContainSubstring(`the Lease of host "none"`)))
}

// TestFind_ChoosesTheHostOfTheObject checks two hosts that serve one API server.
func TestFind_ChoosesTheHostOfTheObject(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.logs["uid-own"] = newLog("hello\n")
	other, err := New(Options{Client: f.api, Reader: f.api, Instances: f.instances, Runtimes: runtime.NewRegistry(f.stub, logr.Discard()), Presence: f.book, Log: logr.Discard()})
	g.Expect(err).NotTo(HaveOccurred())
	f.publish(t, "there", other.Address())
	g.Expect(other.Close()).To(Succeed())
	read := func(opts FindOptions, name string) (string, error) {
		found, err := Find(t.Context(), &rest.Config{BearerToken: good}, f.api, opts)
		if err != nil {
			return "", err
		}
		defer found.Close()
		stream, err := found.Log(t.Context(), Object{"default", "instances", name}, LogOptions{Tail: -1})
		if err != nil {
			return "", err
		}
		defer func() { _ = stream.Close() }()
		text, err := io.ReadAll(stream)
		return string(text), err
	}
	g.Expect(read(FindOptions{Host: "here"}, "own")).To(Equal("hello\n"))
	_, err = read(FindOptions{Host: "there"}, "away")
	g.Expect(err).To(MatchError(And(ContainSubstring(`the manager of host "there"`), ContainSubstring("refuses the connection"))))
	_, err = read(FindOptions{}, "own")
	g.Expect(err).To(MatchError(ContainSubstring("which of the hosts here, there has the process")))

	// A manager has neither the output nor the terminal of another host's object.
	for name, says := range map[string]string{"away": `instances default/away belongs to host "there", and this is the manager of host "here"`, "placed": `belongs to host "there"`} {
		_, err = read(FindOptions{Host: "here"}, name)
		g.Expect(err).To(MatchError(ContainSubstring(says)))
		caller, err := Find(t.Context(), &rest.Config{BearerToken: good}, f.api, FindOptions{Host: "here"})
		g.Expect(err).NotTo(HaveOccurred())
		defer caller.Close()
		object := Object{"default", "instances", name}
		g.Expect(caller.Type(t.Context(), object, runtime.Keystrokes{Text: "x"})).To(MatchError(ContainSubstring(`belongs to host "there"`)))
		_, err = caller.Processes(t.Context(), object)
		g.Expect(err).To(MatchError(ContainSubstring(`belongs to host "there"`)))
		_, err = caller.Attach(t.Context(), object, nil)
		g.Expect(err).To(MatchError(ContainSubstring(`belongs to host "there"`)))
	}
}

// TestFind_SendsNothingToAnotherProgram checks a program that has the port of a manager that has ended, or of a manager on another machine.
func TestFind_SendsNothingToAnotherProgram(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	var asked atomic.Int32
	stranger := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer stranger.Close()
	f.publish(t, "there", hosts.Endpoint{URL: stranger.URL, Authority: f.server.ca})
	caller, err := Find(t.Context(), &rest.Config{BearerToken: good}, f.api, FindOptions{Host: "there"})
	g.Expect(err).NotTo(HaveOccurred())
	defer caller.Close()
	_, err = caller.Log(t.Context(), web, LogOptions{Tail: -1})
	g.Expect(err).To(MatchError(ContainSubstring(`the program that answers is not the manager of host "there"`)))
	g.Expect(asked.Load()).To(BeZero())
}

// Other users can write the published address, so the client sends a token only to loopback or to an address that the caller has
// pinned.
func TestFind_SendsTheTokenOnlyToLoopbackOrAPinnedAddress(t *testing.T) {
	f := newFixture(t)
	server := f.client(t, good).base.String()
	published := f.server.Address()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	NewWithT(t).Expect(os.WriteFile(authority, published.Authority, 0o600)).To(Succeed())
	for name, test := range map[string]struct {
		url  string
		opts FindOptions
		says string
	}{
		"loopback":            {url: server},
		"another machine":     {url: "https://192.0.2.1:443", says: `the Lease of host "here" in namespace berth-system names "https://192.0.2.1:443"`},
		"how to pin":          {url: "https://192.0.2.1:443", says: "--endpoint or in BERTH_ENDPOINT"},
		"every address":       {url: "https://[::]:443", says: "not on this machine"},
		"a name":              {url: "https://localhost.example.com", says: "not on this machine"},
		"a user as the host":  {url: "https://127.0.0.1@192.0.2.1", says: "not on this machine"},
		"control characters":  {url: "https://192.0.2.1/\x1b]0;x\a", says: "want https"},
		"plain":               {url: "http://127.0.0.1", says: "want https"},
		"pinned":              {url: "https://192.0.2.1:443", opts: FindOptions{URL: server}},
		"pinned, with its CA": {url: "https://192.0.2.1:443", opts: FindOptions{URL: server, CAFile: authority}},
		"pinned, plain":       {url: server, opts: FindOptions{URL: "http://192.0.2.1"}, says: "want https"},
		"no such CA":          {url: server, opts: FindOptions{CAFile: "/none"}, says: "certificate authority"},
		"another namespace":   {url: server, opts: FindOptions{Namespace: "elsewhere"}, says: "no Lease in namespace elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			published.URL = test.url
			f.publish(t, "here", published)
			found, err := Find(t.Context(), &rest.Config{BearerToken: good}, f.api, test.opts)
			if test.says != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			defer found.Close()
			_, err = found.Log(t.Context(), web, LogOptions{Tail: -1})
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestRedirectsDoNotCarryTheToken(t *testing.T) {
	g := NewWithT(t)
	var asked atomic.Int32
	thief := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer thief.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	g.Expect(os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600)).To(Succeed())
	api := fake.NewClientBuilder().Build()
	caller, err := Find(t.Context(), &rest.Config{BearerToken: good}, api, FindOptions{URL: server.URL, CAFile: authority})
	g.Expect(err).NotTo(HaveOccurred())
	defer caller.Close()
	_, err = caller.Log(t.Context(), web, LogOptions{Tail: -1})
	g.Expect(err).To(MatchError(ContainSubstring("redirects the request")))
	g.Expect(asked.Load()).To(BeZero())
}

func TestLog_TailReturnsLastLines(t *testing.T) {
	long := strings.Repeat("0123456789 a line that is long enough to fill pieces\n", 5000) // several pieces
	for name, test := range map[string]struct {
		text  string
		first int64
		tail  int64
		want  string
	}{
		"all":                     {text: "a\nb\nc\n", tail: -1, want: "a\nb\nc\n"},
		"none":                    {text: "a\nb\nc\n", tail: 0, want: ""},
		"one":                     {text: "a\nb\nc\n", tail: 1, want: "c\n"},
		"two":                     {text: "a\nb\nc\n", tail: 2, want: "b\nc\n"},
		"more than there are":     {text: "a\nb\nc\n", tail: 9, want: "a\nb\nc\n"},
		"unfinished line":         {text: "a\nb\nc", tail: 2, want: "b\nc"},
		"empty lines":             {text: "a\n\n\n", tail: 2, want: "\n\n"},
		"empty":                   {text: "", tail: 3, want: ""},
		"no newline at all":       {text: strings.Repeat("x", 3*chunk), tail: 1, want: strings.Repeat("x", longLine)},
		"long lines count double": {text: "a\n" + strings.Repeat("x", longLine) + "\nb", tail: 3, want: strings.Repeat("x", longLine) + "\nb"},
		"across pieces":           {text: long, tail: 3000, want: long[2000*(len(long)/5000):]},
		"discarded beginning":     {text: "a\nb\nc\n", first: 2, tail: -1, want: "b\nc\n"},
		"more than is left":       {text: "a\nb\nc\n", first: 2, tail: 5, want: "b\nc\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			log := newLog(test.text)
			log.first = test.first
			f.stub.logs["uid-web"] = log
			NewWithT(t).Expect(f.log(t, LogOptions{Tail: test.tail})).To(Equal(test.want))
		})
	}
}

// growingLog is a log that grows faster than it is read: each read discards two chunks of old output and adds three chunks of new output.
type growingLog struct {
	memoryLog
	end int64
}

func (f *growingLog) Bounds() (int64, int64, error) { return f.first, f.end, nil }

func (f *growingLog) ReadAt(p []byte, at int64) (int, error) {
	gone := f.first
	f.first += 2 * chunk
	f.end += 3 * chunk
	if at < gone {
		return 0, io.ErrUnexpectedEOF
	}
	return len(p), nil
}

func TestCopyLog_EndsWhileLogGrows(t *testing.T) {
	g := NewWithT(t)
	log := &growingLog{end: 4 * chunk}
	out := &bytes.Buffer{}
	control := http.NewResponseController(httptest.NewRecorder())
	g.Expect(copyLog(t.Context(), control, out, log, 0, log.end, false)).To(Succeed())
	g.Expect(out.Len()).To(BeNumerically("<=", 4*chunk))
}

func TestLog_WithoutOutputIsEmpty(t *testing.T) {
	NewWithT(t).Expect(newFixture(t).log(t, LogOptions{Tail: -1})).To(BeEmpty())
}

func TestLog_HasSizeOfTerminal(t *testing.T) {
	for name, test := range map[string]struct {
		object     Object
		size, want runtime.Terminal
	}{
		"known":       {shell, runtime.Terminal{Columns: 213, Rows: 58}, runtime.Terminal{Columns: 213, Rows: 58}},
		"unknown":     {object: shell},
		"no terminal": {object: web, size: runtime.Terminal{Columns: 213, Rows: 58}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.stub.size = test.size
			stream, err := f.client(t, good).Log(t.Context(), test.object, LogOptions{Tail: -1})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stream.Close()).To(Succeed())
			g.Expect(stream.Size).To(Equal(test.want))
		})
	}
}

func TestLog_FollowStreamsNewOutput(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	caller := f.client(t, good)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	// The client starts to follow before there is any output. Therefore it receives all output, although it asked for one line of what exists.
	stream, err := caller.Log(ctx, web, LogOptions{Follow: true, Tail: 1})
	g.Expect(err).NotTo(HaveOccurred())
	log := newLog("one\ntwo\n")
	f.stub.mu.Lock()
	f.stub.logs["uid-web"] = log
	f.stub.mu.Unlock()
	read := func(n int) string {
		buffer := make([]byte, n)
		_, err := io.ReadFull(stream, buffer)
		g.Expect(err).NotTo(HaveOccurred())
		return string(buffer)
	}
	g.Expect(read(8)).To(Equal("one\ntwo\n"))
	log.append("three\n")
	g.Expect(read(6)).To(Equal("three\n"))

	// A second reader has its own cursor, begins with the last two lines, and ends when the log is removed.
	second, err := caller.Log(t.Context(), web, LogOptions{Follow: true, Tail: 2})
	g.Expect(err).NotTo(HaveOccurred())
	cancel() // the first reader disconnects; Start returns only after all streams have ended, which proves that the handler ends
	_, err = io.ReadAll(stream)
	g.Expect(err).To(Or(BeNil(), MatchError(context.Canceled)), "the server may notice first and close the stream normally")
	_ = stream.Close()
	log.remove()
	all, err := io.ReadAll(second)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(all)).To(Equal("two\nthree\n"))
	g.Expect(second.Close()).To(Succeed())
}

func TestLog_FollowEndsWithManager(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.logs["uid-web"] = newLog("x")
	stream, err := f.client(t, good).Log(t.Context(), web, LogOptions{Follow: true, Tail: -1})
	g.Expect(err).NotTo(HaveOccurred())
	f.stop()
	_, err = io.ReadAll(stream)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stream.Close()).To(Succeed())
}

// lockedBuffer supports concurrent writes and reads.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func echo(_ context.Context, in io.Reader, out io.Writer) error {
	buffer := make([]byte, 64)
	for {
		n, err := in.Read(buffer)
		if strings.Contains(string(buffer[:n]), "exit") {
			return nil
		}
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func TestAttach_TransfersInputOutputAndSize(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.attach = echo
	conn, err := f.client(t, good).Attach(t.Context(), shell, &runtime.Terminal{Columns: 80, Rows: 24})
	g.Expect(err).NotTo(HaveOccurred())
	seen := &lockedBuffer{}
	ended := make(chan error, 1)
	go func() { ended <- conn.Receive(seen, nil) }()

	g.Eventually(f.stub.sizes, timeout).Should(Receive(Equal(runtime.Terminal{Columns: 80, Rows: 24})))
	g.Expect(conn.Resize(runtime.Terminal{Columns: 132, Rows: 50})).To(Succeed())
	g.Eventually(f.stub.sizes, timeout).Should(Receive(Equal(runtime.Terminal{Columns: 132, Rows: 50})))
	large := strings.Repeat("y", 3*maxFrame)
	_, err = conn.Write([]byte(large))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(seen.String, timeout).Should(HaveLen(len(large)))
	_, err = conn.Write([]byte("exit"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(ended, timeout).Should(Receive(BeNil()), "the process ended")
	g.Expect(conn.Close()).To(Succeed())
}

func TestAttach_ReportsReasonOfEnd(t *testing.T) {
	for name, test := range map[string]struct {
		phase   facts.Phase
		attach  func(context.Context, io.Reader, io.Writer) error
		stop    bool
		refused string
		says    string
	}{
		"not running": {phase: facts.Exited, refused: "is not running"},
		"no terminal": {phase: facts.Running, attach: func(context.Context, io.Reader, io.Writer) error { return runtime.ErrNoTerminal }, says: "has no terminal"},
		"lost":        {phase: facts.Running, attach: func(context.Context, io.Reader, io.Writer) error { return errors.New("oops") }, says: "oops"},
		"manager ends": {phase: facts.Running, stop: true, says: "manager is ending", attach: func(ctx context.Context, _ io.Reader, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			f.stub.phase, f.stub.attach = test.phase, test.attach
			conn, err := f.client(t, good).Attach(t.Context(), shell, nil)
			if test.refused != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.refused)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			if test.stop {
				go f.stop()
			}
			var end *EndError
			g.Expect(errors.As(conn.Receive(io.Discard, nil), &end)).To(BeTrue())
			g.Expect(end.Message).To(ContainSubstring(test.says))
			g.Expect(conn.Close()).To(Succeed())
		})
	}
}

func TestAttach_EndsWhenClientDisconnects(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	left := make(chan struct{})
	f.stub.attach = func(ctx context.Context, _ io.Reader, _ io.Writer) error {
		<-ctx.Done()
		close(left)
		return ctx.Err()
	}
	conn, err := f.client(t, good).Attach(t.Context(), shell, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conn.Close()).To(Succeed())
	g.Eventually(left, timeout).Should(BeClosed())
}

func TestReceive_RejectsInvalidFrames(t *testing.T) {
	for name, test := range map[string]struct{ wire, says string }{
		"too long":   {"d\xff\xff\xff\xff", "too long"},
		"truncated":  {"d\x00\x00\x00\x05ab", "lost"},
		"bad resize": {"r\x00\x00\x00\x01a", "resize"},
		"bad count":  {"a\x00\x00\x00\x01a", "about the input"},
		"negative":   {"a\x00\x00\x00\x09\x00\xff\xff\xff\xff\xff\xff\xff\xff", "about the input"},
		"unknown":    {"z\x00\x00\x00\x01ae\x00\x00\x00\x02no", "no"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := newConn(nil, strings.NewReader(test.wire))
			NewWithT(t).Expect(conn.Receive(io.Discard, nil)).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestType_SendsInputOrReportsError(t *testing.T) {
	f := newFixture(t)
	c := f.client(t, good)
	shell := Object{Namespace: "default", Resource: "instances", Name: "shell"}
	NewWithT(t).Expect(c.Type(t.Context(), shell, runtime.Line("go on"))).To(Succeed())
	NewWithT(t).Expect(string(f.stub.typed)).To(Equal("uid-shellgo on\r"))
	NewWithT(t).Expect(c.Type(t.Context(), shell, runtime.Keystrokes{Text: strings.Repeat("x", maxInput+1)})).To(MatchError(ContainSubstring("at most 65536 bytes")))
	for err, says := range map[error]string{
		runtime.ErrNotFound:   "is not running: see its conditions",
		runtime.ErrNoTerminal: "has no terminal",
		errors.New("oops"):    "cannot be written to at the moment",
	} {
		f.stub.deaf = err
		NewWithT(t).Expect(c.Type(t.Context(), shell, runtime.Keystrokes{Text: "x"})).To(MatchError(ContainSubstring(says)))
	}
	NewWithT(t).Expect(string(f.stub.typed)).To(Equal("uid-shellgo on\r"), "refused input is not typed")
	for _, withheld := range []*runtime.WithheldError{{Verdict: terminal.Answered}, {Verdict: terminal.AnotherQuestion, Question: "Proceed?"}, {Verdict: terminal.NotTaken}, {Verdict: terminal.Unread}} {
		f.stub.deaf = fmt.Errorf("type: %w", withheld)
		NewWithT(t).Expect(c.Type(t.Context(), shell, runtime.Line("1"))).To(Equal(withheld))
	}
	long := &runtime.WithheldError{Verdict: terminal.AnotherQuestion, Question: strings.Repeat("é", maxQuestion)}
	f.stub.deaf = long
	var shown *runtime.WithheldError
	NewWithT(t).Expect(errors.As(c.Type(t.Context(), shell, runtime.Line("1")), &shown)).To(BeTrue())
	NewWithT(t).Expect(len(shown.Question)).To(And(BeNumerically(">", maxQuestion-4), BeNumerically("<=", maxQuestion)))
}

// TestStart_EndsAfterItsRequests calls the handler as connections do whose request was already read when the server is closed. The race detector reports a
// WaitGroup that is waited for while requests are added to it.
func TestStart_EndsAfterItsRequests(t *testing.T) {
	f, g := newFixture(t), NewWithT(t)
	handler, over := f.server.handler(), make(chan struct{})
	request := func() int {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/v1/namespaces/default/devservers/web/log", nil))
		return answer.Code
	}
	g.Expect(request()).To(Equal(http.StatusUnauthorized))
	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					request()
				}
			}
		})
	}
	f.stop()
	close(over)
	calling.Wait()
	g.Expect(request()).To(Equal(http.StatusServiceUnavailable), "nothing is served after Start has returned")
}
