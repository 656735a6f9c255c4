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
func TestSend(t *testing.T) {
	b := newBench(t, shim.Subreaper)
	p := b.process("agent", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.await("agent", facts.Running)
	want := ""
	for i := range 20 {
		text := fmt.Sprintf("%d%s", i, strings.Repeat("x", 1000))
		b.Expect(b.Type(b.ctx, "agent", []byte(text+"\r"))).To(Succeed())
		want = "got <" + text + ">"
	}
	log, err := b.OpenLog(b.ctx, "agent")
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	b.Eventually(func() (string, error) {
		first, end, err := log.Bounds()
		if err != nil {
			return "", err
		}
		data := make([]byte, end-first)
		n, _ := log.ReadAt(data, first)
		return string(data[:n]), nil
	}).WithTimeout(conformance.Timeout).Should(And(ContainSubstring(want), ContainSubstring("got <0x")))

	b.start("plain", "sleep")
	b.await("plain", facts.Running)
	b.Expect(b.Type(b.ctx, "plain", []byte("x"))).To(MatchError(runtime.ErrNoTerminal))
	b.Expect(b.Type(b.ctx, "nobody", []byte("x"))).To(MatchError(runtime.ErrNotFound))
}

// A shim that exits during a request closes the connection. Type then returns ErrNotFound, because there is no terminal any more.
func TestSendToWhatEndsMeanwhile(t *testing.T) {
	b := newBench(t, shim.Subreaper)
	p := b.process("agent", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	b.await("agent", facts.Running)
	socket := filepath.Join(b.dir("agent"), shim.SocketFile)
	b.Expect(os.Rename(socket, socket+".kept")).To(Succeed())
	b.Expect(b.Type(b.ctx, "agent", []byte("x"))).To(MatchError(runtime.ErrNotFound), "the socket is missing")

	var ending *net.UnixListener
	b.Expect(inDirectory(b.dir("agent"), shim.SocketFile, func(address *net.UnixAddr) (err error) {
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
	b.Expect(b.Type(b.ctx, "agent", []byte("x"))).To(MatchError(runtime.ErrNotFound), "the shim has closed the connection")
	b.Expect(<-hungUp).To(Succeed())
	b.Expect(ending.Close()).To(Succeed())
	b.Expect(b.Type(b.ctx, "agent", []byte("x"))).To(MatchError(runtime.ErrNotFound), "no process listens on the socket")
	b.Expect(os.Rename(socket+".kept", socket)).To(Succeed())
	b.Expect(b.Type(b.ctx, "agent", []byte("x"))).To(Succeed())
}
