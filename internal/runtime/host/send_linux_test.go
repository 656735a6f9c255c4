// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// Input arrives even if nothing reads the output of the program.
func TestType_DeliversInputWhileOutputIsUnread(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	p := f.process("agent", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("agent", facts.Running)
	want := ""
	for i := range 20 {
		text := fmt.Sprintf("%d%s", i, strings.Repeat("x", 1000))
		f.Expect(f.Type(f.ctx, "agent", runtime.Line(text))).To(Succeed())
		want = "got <" + text + ">"
	}
	log, err := f.OpenLog(f.ctx, "agent")
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	f.Eventually(func() (string, error) {
		first, end, err := log.Bounds()
		if err != nil {
			return "", err
		}
		data := make([]byte, end-first)
		n, _ := log.ReadAt(data, first)
		return string(data[:n]), nil
	}).WithTimeout(conformance.Timeout).Should(And(ContainSubstring(want), ContainSubstring("got <0x")))

	f.start("plain", "sleep")
	f.await("plain", facts.Running)
	f.Expect(f.Type(f.ctx, "plain", runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNoTerminal))
	f.Expect(f.Type(f.ctx, "nobody", runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNotFound))
}

// A shim that exits during a request closes the connection. Type then returns ErrNotFound, because there is no terminal any more.
func TestType_ReturnsNotFoundWhenShimExits(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	p := f.process("agent", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("agent", facts.Running)
	socket := filepath.Join(f.dir("agent"), shim.SocketFile)
	f.Expect(os.Rename(socket, socket+".kept")).To(Succeed())
	f.Expect(f.Type(f.ctx, "agent", runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNotFound), "the socket is missing")

	var ending *net.UnixListener
	f.Expect(shim.InDirectory(f.dir("agent"), shim.SocketFile, func(address *net.UnixAddr) (err error) {
		ending, err = net.ListenUnix("unix", address)
		return err
	})).To(Succeed())
	ending.SetUnlinkOnClose(false)
	hungUp := make(chan error, 1)
	go func() {
		conn, err := ending.Accept()
		if err == nil {
			err = conn.Close()
		}
		hungUp <- err
	}()
	f.Expect(f.Type(f.ctx, "agent", runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNotFound), "the shim has closed the connection")
	f.Expect(<-hungUp).To(Succeed())
	f.Expect(ending.Close()).To(Succeed())
	f.Expect(f.Type(f.ctx, "agent", runtime.Keystrokes{Text: "x"})).To(MatchError(runtime.ErrNotFound), "no process listens on the socket")
	f.Expect(os.Rename(socket+".kept", socket)).To(Succeed())
	f.Expect(f.Type(f.ctx, "agent", runtime.Keystrokes{Text: "x"})).To(Succeed())
}
