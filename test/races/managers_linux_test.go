// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
)

// externalManager is a manager in a separate process, which a row can kill. The manager reaches the API server through a proxy, which counts its
// writes.
type externalManager struct {
	kubeconfig string
	proxy      *httptest.Server

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// at is the number of the write at which the manager is killed, counted from 0. With -1, the manager is not killed. If before is true, the manager is
	// killed before that write is carried out, otherwise after it.
	at          int
	before      bool
	seen        int
	killPending bool // the write at which the manager is killed has arrived
	killed      chan struct{}
}

// startExternalManager stops the manager of the row and starts a manager in a separate process instead. The function restore undoes both.
func startExternalManager() (o *externalManager, restore func()) {
	GinkgoHelper()
	transport, err := rest.TransportFor(fault.managers(config))
	Expect(err).NotTo(HaveOccurred())
	target, err := url.Parse(config.Host)
	Expect(err).NotTo(HaveOccurred())
	o = &externalManager{at: -1, killed: make(chan struct{}, 1)}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport, forward.FlushInterval = transport, -1
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	o.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { o.forwardOrKill(w, req, forward) }))
	o.kubeconfig = filepath.Join(programs, env.namespace+".kubeconfig")
	Expect(os.WriteFile(o.kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"c","user":{}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`, o.proxy.URL), 0o600)).To(Succeed())
	env.stopManager()
	o.start()
	var once sync.Once
	end := func() {
		once.Do(func() {
			o.kill()
			o.proxy.CloseClientConnections()
			o.proxy.Close()
		})
	}
	DeferCleanup(end)
	return o, func() {
		GinkgoHelper()
		end()
		env.start()
	}
}

// forwardOrKill forwards a request. At the write with the number o.at, it kills the manager before or after that write is carried out.
func (o *externalManager) forwardOrKill(w http.ResponseWriter, req *http.Request, forward http.Handler) {
	if ours, _ := classify(req); !ours || req.Method == http.MethodGet {
		forward.ServeHTTP(w, req)
		return
	}
	o.mu.Lock()
	fatal, before := o.seen == o.at, o.before
	o.killPending = o.killPending || fatal
	o.seen++
	o.mu.Unlock()
	if !fatal {
		forward.ServeHTTP(w, req)
		return
	}
	if !before { // the write is carried out, and its response is lost
		forward.ServeHTTP(httptest.NewRecorder(), req.WithContext(context.WithoutCancel(req.Context())))
	}
	o.kill()
	o.killed <- struct{}{}
	panic(http.ErrAbortHandler)
}

// killAt sets the number of the write at which the manager is killed. The next write has the number 0.
func (o *externalManager) killAt(at int, before bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at, o.before, o.seen = at, before, 0
}

// cancelKill cancels a kill that killAt requested. It returns true if it was too late: the write at which
// the manager is killed had already arrived.
func (o *externalManager) cancelKill() (late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at = -1
	return o.killPending
}

// start starts a manager on the state that the previous one left.
func (o *externalManager) start() {
	GinkgoHelper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at, o.killPending = -1, false
	o.cmd = exec.Command(filepath.Join(programs, "manager"), "-kubeconfig", o.kubeconfig, "-state", env.stateDir, "-shim", env.shim)
	o.cmd.Stderr = GinkgoWriter
	var err error
	o.stdin, err = o.cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(o.cmd.Start()).To(Succeed())
}

// kill kills the manager with SIGKILL.
func (o *externalManager) kill() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cmd == nil {
		return
	}
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait()
	_ = o.stdin.Close()
	o.cmd = nil
}

// writeBlocker stands between a manager and the API server. While the writeBlocker is frozen, all writes of the manager wait, and the manager does
// not notice.
type writeBlocker struct {
	mu sync.Mutex
	// at is the number of the write at which the writeBlocker freezes, counted from 0. With -1, it does not freeze. If before is true, it freezes before the
	// write is carried out, otherwise between the write and its response.
	at     int
	before bool
	seen   int
	thawed chan struct{}
}

// freeze sets the number of the write at which the writeBlocker freezes. The next write has the number 0.
func (f *writeBlocker) freeze(at int, before bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.before, f.seen = at, before, 0
}

// frozen reports whether the writeBlocker is frozen.
func (f *writeBlocker) frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.thawed != nil
}

func (f *writeBlocker) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed != nil {
		close(f.thawed)
	}
	f.at, f.thawed = -1, nil
}

func (f *writeBlocker) config() *rest.Config {
	frozen := fault.managers(config)
	frozen.Wrap(func(next http.RoundTripper) http.RoundTripper { return blockedTransport{f, next} })
	return frozen
}

type blockedTransport struct {
	*writeBlocker
	next http.RoundTripper
}

func (i blockedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if ours, _ := classify(req); !ours || req.Method == http.MethodGet {
		return i.next.RoundTrip(req)
	}
	i.mu.Lock()
	last := i.seen == i.at
	if last && i.thawed == nil {
		i.thawed = make(chan struct{})
	}
	i.seen++
	thawed, before := i.thawed, i.before
	i.mu.Unlock()
	if last && !before {
		answer, err := i.next.RoundTrip(req)
		waitForThaw(req, thawed)
		return answer, err
	}
	waitForThaw(req, thawed)
	return i.next.RoundTrip(req)
}

// waitForThaw waits until thaw is called.
func waitForThaw(req *http.Request, thawed <-chan struct{}) {
	if thawed == nil {
		return
	}
	select {
	case <-thawed:
	case <-req.Context().Done():
	}
}

// forwardedEvents is a runtime with its own channel of events, so that several managers receive the same events.
type forwardedEvents struct {
	backend
	events chan types.UID
}

func (h forwardedEvents) Events() <-chan types.UID { return h.events }

// startTwoLeaders replaces the manager of the row with two managers that both act as leaders, each with a writeBlocker. The function restore undoes that.
func startTwoLeaders() (a, b *writeBlocker, restore func()) {
	GinkgoHelper()
	env.stop()
	env.stop = nil
	ends := make(chan struct{})
	var stops []func()
	blockers, forwarded := []*writeBlocker{{at: -1}, {at: -1}}, []forwardedEvents{}
	for range blockers {
		forwarded = append(forwarded, forwardedEvents{env.rt, make(chan types.UID, 4096)})
	}
	var spread sync.WaitGroup
	spread.Go(func() {
		for {
			select {
			case uid := <-env.host.Events():
				for _, f := range forwarded {
					f.events <- uid
				}
			case <-ends:
				return
			}
		}
	})
	for i, f := range blockers {
		stops = append(stops, runLeader(f.config(), runtime.NewRegistry(withOwnCapabilities{forwarded[i]}, logr.Discard())))
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			for i, stop := range stops {
				blockers[i].thaw()
				stop()
			}
			close(ends)
			spread.Wait()
			Expect(env.host.Close()).To(Succeed())
		})
	}
	DeferCleanup(end)
	return blockers[0], blockers[1], func() {
		GinkgoHelper()
		end()
		env.start()
	}
}

// runLeader runs a manager that reaches the API server with config.
func runLeader(config *rest.Config, runtimes *runtime.Registry) func() {
	GinkgoHelper()
	mgr, err := manager.New(config, manager.Options{Runtimes: runtimes, LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() {
		cancel()
		Eventually(ended).Should(Receive(), "the manager exits on request")
	}
}
