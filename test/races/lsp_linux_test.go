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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// babel is the backend of language servers with what may go wrong outside of it.
type babel struct {
	tongues
	y *yard
}

func (b babel) Start(ctx context.Context, p runtime.Process) error {
	_, starting, _, _ := b.y.world.now()
	start := func() error { return b.tongues.Start(context.WithoutCancel(ctx), p) }
	if starting == nil {
		return start()
	}
	return starting(p, start)
}

// OnChange hands on who is told of changes.
func (b babel) OnChange(wake func(types.UID)) { b.y.languages.OnChange(wake) }

// tongue gives a LanguageServer whose server is the fake one, with that script. Its clients are patient: a request that is not answered with what
// was asked for is a mistake, however slow the machine is.
func tongue(name string, plan script.Script) *v1alpha1.LanguageServer {
	GinkgoHelper()
	Expect(plan.Write(y.dir, name)).To(Succeed())
	server := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}}
	server.Spec.Language = "fake"
	server.Spec.Workspace.Folders = []string{y.dir}
	fill(&server.Spec.ProcessSpec, []string{filepath.Join(programs, "lspfake"), "-dir", y.dir, "-name", name})
	server.Spec.Hold.TimeoutSeconds = ptr.To[int32](600)
	server.Spec.Limits.RequestTimeoutSeconds = ptr.To[int32](3600)
	return server
}

// endpoint gives where clients of a server connect; nothing while that is not known.
func endpoint(ctx context.Context, server *v1alpha1.LanguageServer) (string, error) {
	fresh, err := get(ctx, server)
	return strings.TrimPrefix(fresh.Status.Endpoint, "unix://"), err
}

// dial connects to a server and shakes hands, as soon as it has an address.
func dial(ctx context.Context, server *v1alpha1.LanguageServer) (client *lspclient.Client, err error) {
	var path string
	if err := until(ctx, func() (bool, error) {
		path, err = endpoint(ctx, server)
		return path != "", err
	}); err != nil {
		return nil, fmt.Errorf("%s has no address: %w", server.Name, err)
	}
	if fault != nil && fault.lingers {
		path = lingering(path)
	}
	if client, err = lspclient.Dial(ctx, path, lspclient.Options{}); err != nil {
		return nil, err
	}
	if _, err := client.Initialize(ctx, y.dir); err != nil {
		client.Close()
		return nil, fmt.Errorf("shake hands with %s: %w", server.Name, err)
	}
	return client, nil
}

// reader is a client of the fake server with a document of its own.
type reader struct {
	*lspclient.Client
	uri, words string
}

// join connects, and opens a document that says who it is.
func join(ctx context.Context, server *v1alpha1.LanguageServer, who string) (*reader, error) {
	client, err := dial(ctx, server)
	if err != nil {
		return nil, err
	}
	r := &reader{Client: client, uri: lspclient.URI(y.dir, who+".txt"), words: who}
	return r, r.Open(r.uri, "fake", 1, who+" has not saved this\n")
}

// joined is join for the goroutine of the spec; the connection ends with it.
func joined(ctx context.Context, server *v1alpha1.LanguageServer, who string) *reader {
	GinkgoHelper()
	r, err := join(ctx, server, who)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(r.Close)
	return r
}

// asks asks once, and gives the PID of the server that has answered. Another's text, or no answer where there has to be one, is an error.
func (r *reader) asks(ctx context.Context) (pid int, err error) {
	text, err := r.Hover(ctx, r.uri, lspclient.Position{Character: 1})
	if err != nil {
		return 0, err
	}
	answer, number, _ := strings.Cut(text, " by ")
	_, answer, _ = strings.Cut(answer, " in ")
	if want := r.words + " has not saved this"; answer != want {
		return 0, fmt.Errorf("a wrong answer: %q, not %q", text, want)
	}
	return strconv.Atoi(number)
}

// fails asks for a fault.
func (r *reader) begins(what script.Fault) (*lspclient.Call, error) {
	params := lspclient.At(r.uri, lspclient.Position{Character: 1})
	params["fake"] = what
	return r.Begin("textDocument/hover", params)
}

// refused gives the error that a server or the multiplexer answered with; nil when it is another one.
func refused(err error) *lspclient.Error {
	var refusal *lspclient.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return nil
}

// chorus has many do something all the time, until it is ended; the first error of each ends it.
type chorus struct {
	stop   func()
	all    sync.WaitGroup
	mu     sync.Mutex
	errs   []error
	rounds map[int]int
}

func sing(ctx context.Context, n int, do func(ctx context.Context, i, round int) error) *chorus {
	ctx, cancel := context.WithCancel(ctx)
	c := &chorus{stop: cancel, rounds: map[int]int{}}
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

// warm waits until everybody has done it so often since now, or has failed.
func (c *chorus) warm(ctx context.Context, n, times int) {
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
	}).Should(BeTrue(), "everybody goes on")
	c.mu.Lock()
	defer c.mu.Unlock()
	Expect(c.errs).To(BeEmpty())
}

// end ends it, and fails when somebody has failed.
func (c *chorus) end() (rounds int) {
	GinkgoHelper()
	c.stop()
	c.all.Wait()
	Expect(c.errs).To(BeEmpty())
	for _, n := range c.rounds {
		rounds += n
	}
	return rounds
}

// started counts how often the server of that name was started.
func started(name string) int {
	GinkgoHelper()
	return len(notes("starts", name))
}

// journal gives what the servers of that name were told, and fails when something of it broke the protocol. Of each server it is checked that
// documents were opened and closed in turns, with rising versions.
func journal(name string) []script.Line {
	GinkgoHelper()
	lines, err := script.Journal(y.dir, name)
	Expect(err).NotTo(HaveOccurred())
	for _, line := range lines {
		Expect(line.What).NotTo(Equal(script.Violation), "the server of %s says that the protocol is broken: %+v", name, line)
	}
	return lines
}

// openAt gives what a server has open, by what it was told.
func openAt(name string, pid int) (open []string) {
	GinkgoHelper()
	is := map[string]bool{}
	for _, line := range journal(name) {
		if line.PID == pid && line.What == script.Open {
			is[line.URI] = true
		}
		if line.PID == pid && line.What == script.Close {
			delete(is, line.URI)
		}
	}
	for uri := range is {
		open = append(open, uri)
	}
	return open
}

// multiplexers gives the living multiplexers.
func multiplexers() (all []found) {
	GinkgoHelper()
	for _, p := range ours() {
		if filepath.Base(p.args[0]) == "berth-lsp" && strings.HasPrefix(p.arg("--dir"), y.stateDir) {
			all = append(all, p)
		}
	}
	return all
}

// multiplexerOf gives the multiplexer that holds a server.
func multiplexerOf(server int) found {
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
	return found{}
}

// peak is the most memory that a process ever had, in bytes.
func peak(pid int) int64 {
	GinkgoHelper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, "VmHWM:"); is {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			Expect(err).NotTo(HaveOccurred())
			return kib << 10
		}
	}
	Fail("no VmHWM")
	return 0
}

// lingering gives the address of a relay to that socket which never notices that a client has gone.
func lingering(path string) string {
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

// relay copies, and leaves open what it copies to.
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
