// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestAttach_TellsWhatTheProcessHasReceived(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.attach = func(ctx context.Context, in io.Reader, _ io.Writer) error {
		counted := in.(*runtime.CountedInput)
		receipt := facts.Receipt{Total: 7}
		buf := make([]byte, 100)
		for {
			counted.Received(receipt)
			n, err := counted.Read(buf)
			receipt.Total += int64(n)
			if errors.Is(err, runtime.ErrInputEnd) {
				counted.Received(facts.Receipt{Total: receipt.Total, Ended: true, Passed: counted.Stream == "name" && counted.Resume})
				<-ctx.Done()
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
	conn, counts, err := f.client(t, good).AttachCounted(t.Context(), shell, nil, CountedInput{Stream: "name", Resume: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(counts).To(BeTrue())
	ended := make(chan error, 1)
	go func() { ended <- conn.Receive(io.Discard, nil) }()
	g.Eventually(conn.Inputs(), timeout).Should(Receive(Equal(InputState{true, facts.Receipt{Total: 7}})), "before any input")
	_, err = io.WriteString(conn, "hello")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(conn.Inputs(), timeout).Should(Receive(Equal(InputState{true, facts.Receipt{Total: 12}})))
	g.Expect(conn.EndInput()).To(Succeed())
	g.Eventually(conn.Inputs(), timeout).Should(Receive(Equal(InputState{true, facts.Receipt{Total: 12, Ended: true, Passed: true}})))
	g.Consistently(ended, "200ms").ShouldNot(Receive(), "the attachment continues after the end of the input")
	g.Expect(conn.Close()).To(Succeed())
	g.Eventually(ended, timeout).Should(Receive())
}

// A backend that does not count gets the input as before, and the client learns that.
func TestAttach_SaysThatABackendDoesNotCount(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.attach = echo
	conn, counts, err := f.client(t, good).AttachCounted(t.Context(), shell, nil, CountedInput{Stream: "name"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(counts).To(BeTrue())
	seen := &lockedBuffer{}
	go func() { _ = conn.Receive(seen, nil) }()
	g.Eventually(conn.Inputs(), timeout).Should(Receive(Equal(InputState{})))
	_, err = io.WriteString(conn, "hello")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(seen.String, timeout).Should(Equal("hello"))
	g.Expect(conn.Close()).To(Succeed())
}

func TestAttach_RefusesInputOfAnotherProcess(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	f.stub.attach = func(context.Context, io.Reader, io.Writer) error { return runtime.ErrUnknownInput }
	conn, _, err := f.client(t, good).AttachCounted(t.Context(), shell, nil, CountedInput{Stream: "name", Resume: true})
	g.Expect(err).NotTo(HaveOccurred())
	var end *EndError
	g.Expect(errors.As(conn.Receive(io.Discard, nil), &end)).To(BeTrue())
	g.Expect(end.Message).To(ContainSubstring("is another process"))
	g.Expect(end.ManagerEnds()).To(BeFalse(), "attach does not try again")
	g.Expect(conn.Close()).To(Succeed())
	for _, name := range []string{strings.Repeat("x", 65), "a/b", "a\nb"} {
		_, _, err = f.client(t, good).AttachCounted(t.Context(), shell, nil, CountedInput{Stream: name})
		g.Expect(err).To(MatchError(ContainSubstring("invalid name of an input")), "%q", name)
	}
}

// Clients of earlier versions ignore frames of kinds that they do not know, and do not name their input.
func TestAttach_TellsNothingToClientsThatDoNotCount(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(t)
	plain := make(chan bool, 1)
	f.stub.attach = func(_ context.Context, in io.Reader, _ io.Writer) error {
		_, counted := in.(*runtime.CountedInput)
		plain <- !counted
		return nil
	}
	conn, counts, err := f.client(t, good).AttachCounted(t.Context(), shell, nil, CountedInput{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(counts).To(BeFalse())
	g.Expect(conn.Receive(io.Discard, nil)).To(Succeed())
	g.Expect(plain).To(Receive(BeTrue()))
	g.Expect(conn.Close()).To(Succeed())
}
