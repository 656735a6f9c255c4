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
	// at is the write at which the manager is killed, counted from 0, or -1 to not kill the manager. before selects whether the manager is killed before
	// or after that write is carried out.
	at     int
	before bool
	seen   int
	doomed bool // the write at which the manager is killed has arrived
	killed chan struct{}
}

// outdoors stops the manager of the row and starts a manager in a separate process instead. The function back undoes both.
func outdoors() (o *externalManager, back func()) {
	GinkgoHelper()
	transport, err := rest.TransportFor(fault.managers(config))
	Expect(err).NotTo(HaveOccurred())
	target, err := url.Parse(config.Host)
	Expect(err).NotTo(HaveOccurred())
	o = &externalManager{at: -1, killed: make(chan struct{}, 1)}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport, forward.FlushInterval = transport, -1
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	o.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { o.pass(w, req, forward) }))
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

// pass forwards a request, and kills the manager before or after the write that at selects.
func (o *externalManager) pass(w http.ResponseWriter, req *http.Request, forward http.Handler) {
	if ours, _ := about(req); !ours || req.Method == http.MethodGet {
		forward.ServeHTTP(w, req)
		return
	}
	o.mu.Lock()
	fatal, before := o.seen == o.at, o.before
	o.doomed = o.doomed || fatal
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

// die selects the write at which the manager is killed, counted from now.
func (o *externalManager) die(at int, before bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at, o.before, o.seen = at, before, 0
}

// spare cancels the kill, and reports whether that was too late.
func (o *externalManager) spare() (late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at = -1
	return o.doomed
}

// start starts a manager on the state that the previous one left.
func (o *externalManager) start() {
	GinkgoHelper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at, o.doomed = -1, false
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
	// at is the write at which the writeBlocker freezes, counted from 0, or -1 to not freeze. before selects whether it freezes before the write is
	// carried out, or between the write and its response.
	at     int
	before bool
	seen   int
	ice    chan struct{}
}

// freeze selects the write at which the writeBlocker freezes, counted from now.
func (f *writeBlocker) freeze(at int, before bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.before, f.seen = at, before, 0
}

// frozen reports whether the writeBlocker is frozen.
func (f *writeBlocker) frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ice != nil
}

func (f *writeBlocker) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ice != nil {
		close(f.ice)
	}
	f.at, f.ice = -1, nil
}

func (f *writeBlocker) config() *rest.Config {
	frozen := fault.managers(config)
	frozen.Wrap(func(next http.RoundTripper) http.RoundTripper { return inIce{f, next} })
	return frozen
}

type inIce struct {
	*writeBlocker
	next http.RoundTripper
}

func (i inIce) RoundTrip(req *http.Request) (*http.Response, error) {
	if ours, _ := about(req); !ours || req.Method == http.MethodGet {
		return i.next.RoundTrip(req)
	}
	i.mu.Lock()
	last := i.seen == i.at
	if last && i.ice == nil {
		i.ice = make(chan struct{})
	}
	i.seen++
	ice, before := i.ice, i.before
	i.mu.Unlock()
	if last && !before {
		answer, err := i.next.RoundTrip(req)
		melt(req, ice)
		return answer, err
	}
	melt(req, ice)
	return i.next.RoundTrip(req)
}

// melt waits until thaw is called.
func melt(req *http.Request, ice <-chan struct{}) {
	if ice == nil {
		return
	}
	select {
	case <-ice:
	case <-req.Context().Done():
	}
}

// hears is a runtime with its own channel of events, so that several managers receive the same events.
type hears struct {
	backend
	events chan types.UID
}

func (h hears) Events() <-chan types.UID { return h.events }

// twoLeaders replaces the manager of the row with two managers that both act as leaders, each with a writeBlocker. The function back undoes that.
func twoLeaders() (a, b *writeBlocker, back func()) {
	GinkgoHelper()
	env.stop()
	env.stop = nil
	ends := make(chan struct{})
	var stops []func()
	freezers, ears := []*writeBlocker{{at: -1}, {at: -1}}, []hears{}
	for range freezers {
		ears = append(ears, hears{env.rt, make(chan types.UID, 4096)})
	}
	var spread sync.WaitGroup
	spread.Go(func() {
		for {
			select {
			case uid := <-env.host.Events():
				for _, ear := range ears {
					ear.events <- uid
				}
			case <-ends:
				return
			}
		}
	})
	for i, f := range freezers {
		stops = append(stops, lead(f.config(), runtime.NewRegistry(whole{ears[i]}, logr.Discard())))
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			for i, stop := range stops {
				freezers[i].thaw()
				stop()
			}
			close(ends)
			spread.Wait()
			Expect(env.host.Close()).To(Succeed())
		})
	}
	DeferCleanup(end)
	return freezers[0], freezers[1], func() {
		GinkgoHelper()
		end()
		env.start()
	}
}

// lead runs a manager that reaches the API server with config.
func lead(config *rest.Config, runtimes *runtime.Registry) func() {
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
