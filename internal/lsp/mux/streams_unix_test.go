// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// socketPair returns both ends of a connection like that of a client.
func socketPair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	return conns[0], conns[1]
}

// pipe returns both ends of a pipe like that of a server.
func pipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	return read, write
}

func TestStreams_LargeMessagesArriveWholeAndInOrder(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{QueueBytes: 64 << 20}})
	inRead, inWrite := pipe(t)
	outRead, outWrite := pipe(t)
	b.attachOver(inRead, inWrite, outRead, outWrite, fakeResult, func(s *fakeServer, m message) {
		if m.Method == "textDocument/hover" {
			s.answer(m, string(m.Params))
			s.send(`{"jsonrpc":"2.0","method":"vendor/after","params":` + string(m.ID) + `}`)
		}
	})
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	c := b.connectOver(socketPair(t)).join()
	const asks = 120
	params := func(i int) string {
		return fmt.Sprintf(`{"n":%d,"padding":"%s"}`, i, strings.Repeat(strconv.Itoa(i%10), []int{300 << 10, 3 << 10, 0}[min(i%12, 2)]))
	}
	for i := range asks {
		c.request(strconv.Itoa(i), "textDocument/hover", params(i))
	}
	b.Eventually(func() int { return len(c.received("vendor/after")) }).WithTimeout(30 * time.Second).Should(Equal(asks))
	for i := range asks {
		b.Expect(string(c.awaitAnswer(strconv.Itoa(i)).Result)).To(Equal(params(i)), "answer %d", i)
	}
}

// serveFiller runs a server that answers hover requests with the filler and does not allocate.
func serveFiller(in io.Reader, out io.Writer, filler string) {
	reader := wire.NewReader(in, wire.Limits{}, nil)
	var e wire.Envelope
	var body, made []byte
	for {
		asked, err := reader.Read()
		if err != nil || wire.Scan(asked, &e) != nil {
			return
		}
		if e.Kind != wire.Request {
			continue
		}
		body = append(append(body[:0], `{"jsonrpc":"2.0","id":`...), e.ID...)
		if string(e.Method) == "initialize" {
			body = append(append(body, `,"result":`...), fakeResult...)
		} else {
			body = append(append(append(body, `,"result":"`...), filler...), '"')
		}
		made = wire.AppendFrame(made[:0], append(body, '}'))
		if _, err := out.Write(made); err != nil {
			return
		}
	}
}

// TestRelayingOverStreamsDoesNotAllocate tests the same as TestRelayingDoesNotAllocate, but over the pipes and sockets that real processes use.
func TestRelayingOverStreamsDoesNotAllocate(t *testing.T) {
	for name, size := range map[string]struct{ question, answer int }{"300 B": {100, 250}, "question": {32 << 10, 1}, "answer": {1, 32 << 10}} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			inRead, inWrite := pipe(t)
			outRead, outWrite := pipe(t)
			go serveFiller(inRead, outWrite, strings.Repeat("x", size.answer))
			b.mux.Attach(1, inWrite, outRead)
			b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
			ours, theirs := socketPair(t)
			t.Cleanup(func() { _ = ours.Close() })
			go b.mux.Serve(theirs)
			reader := wire.NewReader(ours, wire.Limits{}, nil)
			ask := func(question []byte) (answer []byte) {
				if _, err := ours.Write(question); err != nil {
					panic(err)
				}
				answer, err := reader.Read()
				if err != nil {
					panic(err)
				}
				return answer
			}
			ask(frame([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)))
			hover := frame(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":2,"method":"textDocument/hover","params":{"padding":%q}}`, strings.Repeat("x", size.question)))
			for range 100 {
				b.Expect(len(ask(hover))).To(BeNumerically(">", size.answer))
			}
			b.Expect(testing.AllocsPerRun(1000, func() { ask(hover) })).To(BeZero())
		})
	}
}
