// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/facts"
)

// typingClient returns a connection to a shim with a terminal, and the program's side of the terminal.
func typingClient(t *testing.T) (connect func() *Client, slave *os.File) {
	g := NewWithT(t)
	master, slave, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _, _ = master.Close(), slave.Close() })
	s := &shim{identity: Identity{Token: "secret"}, terminal: &terminal{master: master}}
	return func() *Client {
		here, there := net.Pipe()
		go s.converse(there)
		t.Cleanup(func() { _, _ = here.Close(), there.Close() })
		c, err := newClient(here, "secret", time.Minute)
		g.Expect(err).NotTo(HaveOccurred())
		return c
	}, slave
}

func read(g Gomega, from *os.File) string {
	buf := make([]byte, 4096)
	n, err := from.Read(buf)
	if err == nil {
		return string(buf[:n])
	}
	g.Expect(err).To(MatchError("EOF"))
	return ""
}

func TestCounted_TypesEachByteOnce(t *testing.T) {
	g := NewWithT(t)
	connect, slave := typingClient(t)
	_, err := term.MakeRaw(int(slave.Fd()))
	g.Expect(err).NotTo(HaveOccurred())
	first, second := connect(), connect()
	_, err = first.Type(Keys{Stream: "a", Resume: true})
	g.Expect(err).To(MatchError(ErrUnknownStream))
	g.Expect(first.Type(Keys{Stream: "a"})).To(Equal(facts.Receipt{}))
	g.Expect(first.Type(Keys{Stream: "a", Data: []byte("hello")})).To(Equal(facts.Receipt{Total: 5}))
	g.Expect(read(g, slave)).To(Equal("hello"))
	g.Expect(second.Type(Keys{Stream: "a", Resume: true})).To(Equal(facts.Receipt{Total: 5}), "another connection")
	g.Expect(second.Type(Keys{Stream: "a", Data: []byte("hel")})).To(Equal(facts.Receipt{Total: 5}), "everything was typed before")
	g.Expect(second.Type(Keys{Stream: "a", Offset: 3, Data: []byte("lo world")})).To(Equal(facts.Receipt{Total: 11}))
	g.Expect(read(g, slave)).To(Equal(" world"))
	_, err = second.Type(Keys{Stream: "a", Offset: 12, Data: []byte("x")})
	g.Expect(err).To(MatchError(ContainSubstring("input is missing")))
	g.Expect(second.Type(Keys{Stream: "b", Data: []byte("!")})).To(Equal(facts.Receipt{Total: 1}), "another stream")
	g.Expect(read(g, slave)).To(Equal("!"))
	g.Expect(second.Type(Keys{Stream: "a", Offset: 11, End: true})).To(Equal(facts.Receipt{Total: 11, Ended: true}), "a program that reads keys does not receive the end")
}

func TestCounted_RemembersFewStreams(t *testing.T) {
	g := NewWithT(t)
	connect, _ := typingClient(t)
	c := connect()
	for i := range maxStreams + 1 {
		g.Expect(c.Type(Keys{Stream: strconv.Itoa(i)})).To(Equal(facts.Receipt{}))
		g.Expect(c.Type(Keys{Stream: "0"})).To(Equal(facts.Receipt{}), "in use")
	}
	g.Expect(c.Type(Keys{Stream: "0", Resume: true})).To(Equal(facts.Receipt{}))
	_, err := c.Type(Keys{Stream: "1", Resume: true})
	g.Expect(err).To(MatchError(ErrUnknownStream))
}

// A program that reads lines reads the end of its input once, also after a line that is not complete.
func TestCounted_PassesTheEndOfTheInput(t *testing.T) {
	for name, test := range map[string]struct {
		input string
		reads []string
	}{
		"nothing":            {"", []string{""}},
		"a line":             {"one\n", []string{"one\n", ""}},
		"Enter":              {"one\r", []string{"one\n", ""}},
		"an unended line":    {"one\ntwo", []string{"one\n", "two", ""}},
		"a line with an end": {"two\x04", []string{"two", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			connect, slave := typingClient(t)
			c, total := connect(), int64(len(test.input))
			end := facts.Receipt{Total: total, Ended: true, Passed: true}
			g.Expect(c.Type(Keys{Stream: "a", Data: []byte(test.input), End: true})).To(Equal(end))
			g.Expect(connect().Type(Keys{Stream: "a", Resume: true, Offset: total, End: true})).To(Equal(end), "again")
			g.Expect(c.Type(Keys{Stream: "b", Data: []byte("later\n")})).To(Equal(facts.Receipt{Total: 6}))
			for _, expected := range append(test.reads, "later\n") {
				g.Expect(read(g, slave)).To(Equal(expected))
			}
		})
	}
}

func TestCounted_TypesNoEndThatTheTerminalHasDisabled(t *testing.T) {
	g := NewWithT(t)
	connect, slave := typingClient(t)
	modes, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	g.Expect(err).NotTo(HaveOccurred())
	modes.Cc[unix.VEOF] = 0
	g.Expect(unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, modes)).To(Succeed())
	g.Expect(connect().Type(Keys{Stream: "a", End: true})).To(Equal(facts.Receipt{Ended: true}))
}
