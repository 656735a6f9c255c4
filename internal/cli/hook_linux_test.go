// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/shim"
)

const stopEvent = `{"session_id":"s1","hook_event_name":"Stop"}`

// listenForHooks listens at the socket of hooks in a directory.
func listenForHooks(t *testing.T, dir string) net.Listener {
	var listener net.Listener
	err := shim.InDirectory(dir, hook.SocketFile, func(address *net.UnixAddr) (err error) {
		listener, err = net.Listen("unix", address.Name)
		return err
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// silentManagers are managers that do not answer, each with its socket in a directory.
var silentManagers = map[string]func(t *testing.T, dir string){
	"absent":  func(*testing.T, string) {},
	"stopped": func(t *testing.T, dir string) { listenForHooks(t, dir) },
	"slow": func(t *testing.T, dir string) {
		listener := listenForHooks(t, dir)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = conn.Close() }()
					_, _ = conn.Write([]byte(" "))
					_, _ = io.Copy(io.Discard, conn) // until the client has gone
				}()
			}
		}()
	},
	"gone": func(t *testing.T, dir string) {
		listener := listenForHooks(t, dir)
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = listener.Close()
	},
	"with a full queue": func(t *testing.T, dir string) {
		g := NewWithT(t)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = shim.InDirectory(dir, hook.SocketFile, func(address *net.UnixAddr) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: address.Name}) })
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(unix.Listen(fd, 0)).To(Succeed())
	},
}

// An agent waits for its hooks, so no manager may delay them. Each agent makes 200 calls, 1,000 in total.
func TestHook_DelaysNoAgent(t *testing.T) {
	for name, start := range silentManagers {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			start(t, dir)
			var calls sync.WaitGroup
			var mu sync.Mutex
			var longest time.Duration
			for range 25 {
				calls.Go(func() {
					for range 8 {
						f := newFixture()
						f.app.in = strings.NewReader(stopEvent)
						before := time.Now()
						code := f.run(t.Context(), "hook", "--state-dir", dir)
						took := time.Since(before)
						mu.Lock()
						longest = max(longest, took)
						g.Expect(code).To(BeZero())
						g.Expect(f.out.String()+f.err.String()).To(BeEmpty(), "an agent may interpret what its hooks print")
						mu.Unlock()
					}
				})
			}
			calls.Wait()
			g.Expect(longest).To(BeNumerically("<", 2*time.Second))
		})
	}
}

func TestHook_EndsAlthoughTheEventDoesNot(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	in, write := io.Pipe()
	t.Cleanup(func() { _ = write.Close() })
	f.app.in = in
	before := time.Now()
	g.Expect(f.run(t.Context(), "hook", "--state-dir", t.TempDir())).To(BeZero())
	g.Expect(time.Since(before)).To(BeNumerically("<", 2*time.Second))
}

func TestHook_ExitCodeIsAlwaysZero(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--no-such-flag"}, {"--state"}, {"--state", "Dreaming"}, {"--state", "Waiting", "--question", "a text"}, {"a", "b", "c"}, {"null"}, {"--state-dir", filepath.Join(dir, "missing")},
		{"--state", "Done", "--state-dir", filepath.Join(dir, strings.Repeat("x", 200))},
	} {
		f := newFixture()
		f.app.in = strings.NewReader(stopEvent)
		g.Expect(f.run(t.Context(), append([]string{"hook"}, args...)...)).To(BeZero(), "%q", args)
		g.Expect(f.out.String()+f.err.String()).To(BeEmpty(), "%q", args)
	}
	for _, args := range [][]string{{"--bogus", "hook"}, {"--bogus=x", "hook"}, {"--context", "x", "hook", "--state", "Done"}, {"-n", "x", "-v", "hook"}} {
		f := newFixture()
		g.Expect(f.run(t.Context(), args...)).To(BeZero(), "%q", args)
		g.Expect(f.out.String()+f.err.String()).To(BeEmpty(), "%q", args)
	}
	for _, args := range [][]string{{"--bogus"}, {"--bogus", "status"}, {"status", "--bogus", "hook"}, {"status", "--bogus"}} {
		g.Expect(newFixture().run(t.Context(), args...)).To(Equal(exitUsage), "%q", args)
	}
}

func TestHook_StatesItsReasonOnRequest(t *testing.T) {
	g := NewWithT(t)
	for reason, args := range map[string][]string{
		"means nothing": {`{"type":"other"}`}, "invalid state": {"--state", "Dreaming"}, "no such file": {`{"type":"agent-turn-complete"}`},
	} {
		f := newFixture()
		g.Expect(f.run(t.Context(), append([]string{"hook", "--verbose", "--state-dir", filepath.Join(t.TempDir(), "missing")}, args...)...)).To(BeZero())
		g.Expect(f.err.String()).To(And(HavePrefix("not reported: "), ContainSubstring(reason)))
	}
}
