// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// languageFaults is the language server backend with faults that come from outside Berth.
type languageFaults struct {
	languageBackend
	env *testEnv
}

func (b languageFaults) Start(ctx context.Context, p runtime.Process) error {
	_, starting, _, _ := b.env.faults.hooks()
	start := func() error { return b.languageBackend.Start(context.WithoutCancel(ctx), p) }
	if starting == nil {
		return start()
	}
	return starting(p, start)
}

// newLanguageServer returns a LanguageServer that runs the fake server with that script. The timeouts of the LanguageServer are so long that a
// request without the right response is an error even on a slow machine.
func newLanguageServer(name string, plan script.Script) *v1alpha1.LanguageServer {
	GinkgoHelper()
	Expect(plan.Write(env.dir, name)).To(Succeed())
	server := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
	server.Spec.Language = "fake"
	server.Spec.Workspace.Folders = []string{env.dir}
	setCommand(&server.Spec.ProcessSpec, []string{filepath.Join(programs, "lspfake"), "-dir", env.dir, "-name", name})
	server.Spec.Hold.TimeoutSeconds = ptr.To[int32](600)
	server.Spec.Limits.RequestTimeoutSeconds = ptr.To[int32](3600)
	return server
}

// endpoint returns the address at which clients connect, or "" while the address is unknown.
func endpoint(ctx context.Context, server *v1alpha1.LanguageServer) (string, error) {
	fresh, err := get(ctx, server)
	return strings.TrimPrefix(fresh.Status.Endpoint, "unix://"), err
}

// dial waits until the server has an address, connects, and initializes the connection.
func dial(ctx context.Context, server *v1alpha1.LanguageServer) (client *lspclient.Client, err error) {
	var path string
	if err := pollUntil(ctx, func() (bool, error) {
		path, err = endpoint(ctx, server)
		return path != "", err
	}); err != nil {
		return nil, fmt.Errorf("%s has no address: %w", server.Name, err)
	}
	if fault != nil && fault.ignoresDisconnects {
		path = lingeringRelay(path)
	}
	if client, err = lspclient.Dial(ctx, path, lspclient.Options{}); err != nil {
		return nil, err
	}
	if _, err := client.Initialize(ctx, env.dir); err != nil {
		client.Close()
		return nil, fmt.Errorf("initialize %s: %w", server.Name, err)
	}
	return client, nil
}

// documentClient is a client of the fake server with its own document.
type documentClient struct {
	*lspclient.Client
	uri, words string
}

// joinServer connects, and opens a document whose text identifies the client.
func joinServer(ctx context.Context, server *v1alpha1.LanguageServer, who string) (*documentClient, error) {
	client, err := dial(ctx, server)
	if err != nil {
		return nil, err
	}
	r := &documentClient{Client: client, uri: lspclient.URI(env.dir, who+".txt"), words: who}
	return r, r.Open(r.uri, "fake", 1, who+" has not saved this\n")
}

// mustJoin is joinServer for the goroutine of the spec: an error fails the spec, and the connection is closed at the end of the spec.
func mustJoin(ctx context.Context, server *v1alpha1.LanguageServer, who string) *documentClient {
	GinkgoHelper()
	r, err := joinServer(ctx, server, who)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(r.Close)
	return r
}

// request sends one request, and returns the PID of the server that answered. It returns an error if there is no answer or the answer contains the text
// of another document.
func (r *documentClient) request(ctx context.Context) (pid int, err error) {
	text, err := r.Hover(ctx, r.uri, lspclient.Position{Character: 1})
	if err != nil {
		return 0, err
	}
	answer, number, _ := strings.Cut(text, " by ")
	_, answer, _ = strings.Cut(answer, " in ")
	if want := r.words + " has not saved this"; answer != want {
		return 0, fmt.Errorf("wrong answer: %q, want %q", text, want)
	}
	return strconv.Atoi(number)
}

// startFault sends a request that provokes a fault.
func (r *documentClient) startFault(what script.Fault) (*lspclient.Call, error) {
	params := lspclient.PositionParams(r.uri, lspclient.Position{Character: 1})
	params["fake"] = what
	return r.StartCall("textDocument/hover", params)
}

// errorResponse returns the error response that err contains, from a server or from the multiplexer. It returns nil if err is another error.
func errorResponse(err error) *lspclient.Error {
	var refusal *lspclient.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return nil
}

// clientLoad calls a function from many goroutines until end is called. Each goroutine stops at its first error.
type clientLoad struct {
	stop   func()
	all    sync.WaitGroup
	mu     sync.Mutex
	errs   []error
	rounds map[int]int
}

func startClients(ctx context.Context, n int, do func(ctx context.Context, i, round int) error) *clientLoad {
	ctx, cancel := context.WithCancel(ctx)
	c := &clientLoad{stop: cancel, rounds: map[int]int{}}
	for i := range n {
		c.all.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				err := do(ctx, i, round)
				c.mu.Lock()
				if err != nil && ctx.Err() == nil {
					c.errs = append(c.errs, err)
					c.mu.Unlock()
					return
				}
				c.rounds[i]++
				c.mu.Unlock()
			}
		})
	}
	DeferCleanup(func() {
		cancel()
		c.all.Wait()
	})
	return c
}

// waitForRounds waits until each of n goroutines has made at least the given number of further calls (times), or one call has failed.
func (c *clientLoad) waitForRounds(ctx context.Context, n, times int) {
	GinkgoHelper()
	c.mu.Lock()
	before := map[int]int{}
	for i, rounds := range c.rounds {
		before[i] = rounds
	}
	c.mu.Unlock()
	Eventually(ctx, func() (done bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range n {
			if c.rounds[i] < before[i]+times && len(c.errs) == 0 {
				return false
			}
		}
		return true
	}).Should(BeTrue(), "all goroutines make progress")
	c.mu.Lock()
	defer c.mu.Unlock()
	Expect(c.errs).To(BeEmpty())
}

// end stops all goroutines and returns the number of calls; it fails if any call failed.
func (c *clientLoad) end() (rounds int) {
	GinkgoHelper()
	c.stop()
	c.all.Wait()
	Expect(c.errs).To(BeEmpty())
	for _, n := range c.rounds {
		rounds += n
	}
	return rounds
}

// startCount returns how often servers of that name were started.
func startCount(name string) int {
	GinkgoHelper()
	return len(notes("starts", name))
}

// journal returns the messages that the servers of that name received, and fails if a server recorded a violation of the protocol, for example a document
// that was opened twice or whose version did not increase.
func journal(name string) []script.Line {
	GinkgoHelper()
	lines, err := script.Journal(env.dir, name)
	Expect(err).NotTo(HaveOccurred())
	for _, line := range lines {
		Expect(line.What).NotTo(Equal(script.Violation), "server %s reports a violation of the protocol: %+v", name, line)
	}
	return lines
}

// openDocuments returns the documents that a server has open, according to the messages that it received.
func openDocuments(name string, pid int) (open []string) {
	GinkgoHelper()
	isOpen := map[string]bool{}
	for _, line := range journal(name) {
		if line.PID == pid && line.What == script.Open {
			isOpen[line.URI] = true
		}
		if line.PID == pid && line.What == script.Close {
			delete(isOpen, line.URI)
		}
	}
	for uri := range isOpen {
		open = append(open, uri)
	}
	return open
}

// multiplexers returns the running multiplexers.
func multiplexers() (all []suiteProcess) {
	GinkgoHelper()
	for _, p := range suiteProcesses() {
		if filepath.Base(p.args[0]) == "berth-lsp" && strings.HasPrefix(p.arg("--dir"), env.stateDir) {
			all = append(all, p)
		}
	}
	return all
}

// multiplexerOf returns the multiplexer whose child is the server with this PID.
func multiplexerOf(server int) suiteProcess {
	GinkgoHelper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server))
	Expect(err).NotTo(HaveOccurred())
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	for _, p := range multiplexers() {
		if strconv.Itoa(p.PID) == fields[1] {
			return p
		}
	}
	Fail(fmt.Sprintf("process %d is not the child of a multiplexer", server))
	return suiteProcess{}
}

// peakMemory returns the highest memory use of a process so far, in bytes.
func peakMemory(pid int) int64 {
	GinkgoHelper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		if rest, isOpen := strings.CutPrefix(line, "VmHWM:"); isOpen {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			Expect(err).NotTo(HaveOccurred())
			return kib << 10
		}
	}
	Fail("no VmHWM")
	return 0
}

// lingeringRelay starts a relay to the Unix socket at path and returns the address of the relay. The relay never notices that a client has disconnected.
func lingeringRelay(path string) string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "relay")
	Expect(err).NotTo(HaveOccurred())
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		_ = listener.Close()
		_ = os.RemoveAll(dir)
	})
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", path)
			if err != nil {
				_ = near.Close()
				continue
			}
			go relay(near, far)
			go relay(far, near)
		}
	}()
	return listener.Addr().String()
}

// relay copies from one connection to the other, and leaves the destination open.
func relay(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}
