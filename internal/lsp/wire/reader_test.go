// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// message returns a body of the given size whose content reveals misplaced bytes.
func message(size int) []byte {
	body := []byte(`{"jsonrpc":"2.0","id":1,"result":"`)
	for i := 0; len(body) < size-2; i++ {
		body = append(body, byte('a'+i*i%26))
	}
	return append(body, `"}`...)
}

func TestRead_HandlesAllSizesAndChunks(t *testing.T) {
	sizes := []int{40, 300, bufferBytes - 30, bufferBytes, bufferBytes + 1, 100, keepBytes, keepBytes - 1, keepBytes + 1, 3<<20 + 7, 41, 200_000}
	var stream []byte
	for _, size := range sizes {
		stream = AppendFrame(stream, message(size))
	}
	sources := map[string]func(io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"byte by byte":  iotest.OneByteReader,
		"half":          iotest.HalfReader,
		"data with EOF": iotest.DataErrReader,
		"in odd pieces": func(r io.Reader) io.Reader { return chunkReader{r, 1021} },
		"empty reads":   func(r io.Reader) io.Reader { return &intermittentReader{Reader: r} },
	}
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reader := NewReader(source(bytes.NewReader(stream)), Limits{}, NewBudget(4<<20))
			for _, size := range sizes {
				body, err := reader.Read()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(bytes.Equal(body, message(size))).To(BeTrue(), "message of %d bytes", size)
			}
			for range 2 {
				_, err := reader.Read()
				g.Expect(err).To(BeIdenticalTo(io.EOF))
			}
			g.Expect(reader.budget.used.Load()).To(BeZero())
		})
	}
}

type chunkReader struct {
	io.Reader
	size int
}

func (p chunkReader) Read(into []byte) (int, error) {
	return p.Reader.Read(into[:min(len(into), p.size)])
}

// intermittentReader returns no data on every second read.
type intermittentReader struct {
	io.Reader
	turn bool
}

func (h *intermittentReader) Read(into []byte) (int, error) {
	if h.turn = !h.turn; h.turn {
		return 0, nil
	}
	return h.Reader.Read(into[:min(len(into), 5000)])
}

func TestRead_ChecksHeaders(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for _, test := range []struct {
		header string
		want   error // nil means that the message {} is read
	}{
		{"Content-Length: 2\r\n\r\n", nil},
		{"content-LENGTH:2\r\n\r\n", nil},
		{"Content-Length:\t2 \r\n\r\n", nil},
		{"Content-Length: 002\r\n\r\n", nil},
		{"Content-Length: 2\n\n", nil},
		{"Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n", nil},
		{"Content-Type: application/vscode-jsonrpc; charset=\"UTF8\"\r\nContent-Length: 2\r\n\r\n", nil},
		{"X-Other: a:b\r\nContent-Length: 2\r\nEmpty:\r\n\r\n", nil},
		{"X: " + long + "\r\nX: " + long + "\r\nContent-Length: 2\r\n\r\n", nil},
		{"X: " + long + "\r\nX: " + long + "\r\nX: " + long + "\r\nContent-Length: 2\r\n\r\n", errHeader},
		{"X: " + long + long + "\r\nContent-Length: 2\r\n\r\n", errHeader},
		{strings.Repeat("X: y\r\n", 15) + "Content-Length: 2\r\n\r\n", nil},
		{strings.Repeat("X: y\r\n", 16) + "Content-Length: 2\r\n\r\n", errHeader},
		{"\r\n", errHeader},
		{"X: y\r\n\r\n", errHeader},
		{"Content-Length: 2\r\nContent-Length: 2\r\n\r\n", errHeader},
		{"Content-Length: 2\r\ncontent-length: 3\r\n\r\n", errHeader},
		{"Content-Length: 0\r\n\r\n", errHeader},
		{"Content-Length:\r\n\r\n", errHeader},
		{"Content-Length: -2\r\n\r\n", errHeader},
		{"Content-Length: +2\r\n\r\n", errHeader},
		{"Content-Length: 0x2\r\n\r\n", errHeader},
		{"Content-Length: 2.0\r\n\r\n", errHeader},
		{"Content-Length: 2 3\r\n\r\n", errHeader},
		{"Content-Length : 2\r\n\r\n", errHeader},
		{" Content-Length: 2\r\n\r\n", errHeader},
		{"Content-Length\r\n\r\n", errHeader},
		{": 2\r\n\r\n", errHeader},
		{"Content-Length: 2\r\nX: \x00\r\n\r\n", errHeader},
		{"Content-Length: 2\r\nX: ü\r\n\r\n", errHeader},
		{"Content-Length: 2\r\nContent-Type: text/plain; charset=utf-16\r\n\r\n", errHeader},
		{"Content-Length: 67108864\r\n\r\n", errTruncated},
		{"Content-Length: 67108865\r\n\r\n", errTooLarge},
		{"Content-Length: 9223372036854775808\r\n\r\n", errTooLarge},
		{"Content-Length: 2", errTruncated},
		{"C", errTruncated},
		{"Content-Length: 3\r\n\r\n", errTruncated},
		{"{}", errTruncated},
	} {
		t.Run(test.header[:min(len(test.header), 50)], func(t *testing.T) {
			g := NewWithT(t)
			body, err := NewReader(strings.NewReader(test.header+"{}"), Limits{}, nil).Read()
			if test.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(body)).To(Equal("{}"))
				return
			}
			g.Expect(err).To(MatchError(test.want))
			g.Expect(Ended(err)).To(Equal(errors.Is(test.want, errTruncated)))
		})
	}
}

func TestRead_SkipsTextBeforeFirstHeader(t *testing.T) {
	frame := string(AppendFrame(nil, []byte("{}")))
	for _, test := range []struct {
		name, stream string
		skipped      int
		want         error
	}{
		{"nothing", frame, 0, nil},
		{"a greeting", "Welcome to the server\n" + frame, 22, nil},
		{"no line end", "Cc content content-lengthy " + frame, 27, nil},
		{"the maximum", strings.Repeat("c", 100) + frame, 100, nil},
		{"more than the maximum", strings.Repeat("c", 101) + frame, 101, errHeader},
		{"only a greeting", "usage: server --stdio\n", 22, errTruncated},
	} {
		for name, source := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				reader := NewReader(source(strings.NewReader(test.stream)), Limits{Skip: 100}, nil)
				body, err := reader.Read()
				if test.want != nil {
					g.Expect(err).To(MatchError(test.want))
					return
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(body)).To(Equal("{}"))
				g.Expect(reader.skipped).To(Equal(test.skipped))
			})
		}
	}
	t.Run("not between messages", func(t *testing.T) {
		g := NewWithT(t)
		reader := NewReader(strings.NewReader(frame+"x\n"+frame), Limits{Skip: 100}, nil)
		_, err := reader.Read()
		g.Expect(err).NotTo(HaveOccurred())
		_, err = reader.Read()
		g.Expect(err).To(MatchError(errHeader))
	})
}

// TestRead_HostileInputUsesBoundedMemory uses input that made other libraries allocate gigabytes. In total, a reader may allocate at most twice the received
// bytes, plus the buffer that every reader has.
func TestRead_HostileInputUsesBoundedMemory(t *testing.T) {
	endless := func() io.Reader { return strings.NewReader(strings.Repeat("x", 1<<20)) }
	announce := func(n string, arrived int) func() io.Reader {
		return func() io.Reader {
			return io.MultiReader(strings.NewReader("Content-Length: "+n+"\r\n\r\n"), bytes.NewReader(message(arrived)))
		}
	}
	for _, test := range []struct {
		name   string
		source func() io.Reader
		limit  int
		want   error
	}{
		{"1 GiB announced, 1 byte", announce("1073741824", 40), 0, errTooLarge},
		{"2 GiB announced", announce("2147483647", 40), 0, errTooLarge},
		{"4 GiB announced", announce("4294967295", 40), 0, errTooLarge},
		{"100 TB announced", announce("99999999999999", 40), 0, errTooLarge},
		{"8 EiB announced", announce("9223372036854775807", 40), 0, errTooLarge},
		{"negative", announce("-1", 40), 0, errHeader},
		{"the maximum announced, 1 byte", announce("268435456", 40), 1 << 30, errTruncated},
		{"100 KB of the maximum arrive", announce("268435456", 100<<10), 1 << 30, errTruncated},
		{"1.1 MB of the maximum arrive", announce("268435456", 1100<<10), 1 << 30, errTruncated},
		{"9 MB of the maximum arrive", announce("268435456", 9<<20), 1 << 30, errTruncated},
		{"9 MB whole", announce(fmt.Sprint(9<<20), 9<<20), 0, nil},
		{"300 KB whole", announce(fmt.Sprint(300<<10), 300<<10), 0, nil},
		{"an endless header line", endless, 0, errHeader},
		{"a header of endless fields", func() io.Reader { return strings.NewReader(strings.Repeat("X: y\r\n", 1<<17)) }, 0, errHeader},
		{"endless garbage", endless, -1, errHeader},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			source := &countingReader{Reader: test.source()}
			limits := Limits{MessageBytes: test.limit}
			if test.limit < 0 {
				limits.Skip = 64 << 10
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := NewReader(source, limits, nil).Read()
			runtime.ReadMemStats(&after)
			if test.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(test.want))
			}
			g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<=", 2*source.n+2*bufferBytes+16<<10), "%d bytes arrived", source.n)
		})
	}
}

type countingReader struct {
	io.Reader
	n int
}

func (c *countingReader) Read(into []byte) (int, error) {
	n, err := c.Reader.Read(into)
	c.n += n
	return n, err
}

func TestRead_ReleasesLargeBuffer(t *testing.T) {
	g := NewWithT(t)
	source := bytes.NewReader(append(AppendFrame(nil, message(2<<20)), AppendFrame(nil, message(100))...))
	reader := NewReader(source, Limits{}, nil)
	_, err := reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reader.large).To(HaveCap(0))
}

// TestRead_SlowMessageTimesOut uses a peer that begins a message and never completes it.
func TestRead_SlowMessageTimesOut(t *testing.T) {
	frame := AppendFrame(nil, message(100_000))
	for _, sent := range []int{1, 16, 20, 24, 100, 50_000, len(frame) - 1} {
		t.Run(fmt.Sprintf("%d bytes", sent), func(t *testing.T) {
			g := NewWithT(t)
			ours, theirs := net.Pipe()
			defer func() { _ = ours.Close() }()
			written := make(chan error, 1)
			go func() {
				_, err := theirs.Write(frame[:sent])
				written <- err
			}()
			reader := NewReader(ours, Limits{BodyBase: 100 * time.Millisecond}, nil)
			_, err := reader.Read()
			g.Expect(err).To(MatchError(errSlow))
			g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
			g.Expect(Ended(err)).To(BeFalse())
			_ = theirs.Close()
			g.Eventually(written, time.Minute).Should(Receive())
		})
	}
}

// TestRead_SetsDeadlineOnlyWithinMessages checks that silence between two messages is not an error, and that no deadline is set for a message that is already
// complete.
func TestRead_SetsDeadlineOnlyWithinMessages(t *testing.T) {
	g := NewWithT(t)
	frame := AppendFrame(nil, message(100))
	source := &scriptedReader{parts: [][]byte{frame, frame[:30], frame[30:], AppendFrame(nil, message(3<<20))}}
	reader := NewReader(source, Limits{BodyBase: time.Hour, BodyPerMiB: time.Minute}, nil)

	_, err := reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(source.deadlines).To(BeEmpty())

	_, err = reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(source.deadlines).To(HaveLen(2))
	g.Expect(source.deadlines[0]).To(BeTemporally("~", time.Now().Add(time.Hour), 10*time.Minute))
	g.Expect(source.deadlines[1]).To(BeZero())

	_, err = reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(source.deadlines[2]).To(BeTemporally(">", source.deadlines[0].Add(2*time.Minute)))
	g.Expect(source.deadlines[len(source.deadlines)-1]).To(BeZero())
}

type scriptedReader struct {
	parts     [][]byte
	deadlines []time.Time
}

func (s *scriptedReader) SetReadDeadline(at time.Time) error {
	s.deadlines = append(s.deadlines, at)
	return nil
}

func (s *scriptedReader) Read(into []byte) (int, error) {
	if len(s.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(into, s.parts[0])
	if s.parts[0] = s.parts[0][n:]; len(s.parts[0]) == 0 {
		s.parts = s.parts[1:]
	}
	return n, nil
}

// TestBudget_CountsReceivedBytes checks that announced bytes do not use the budget, that received bytes do, and that the received bytes are returned when a
// message or its connection ends.
func TestBudget_CountsReceivedBytes(t *testing.T) {
	g := NewWithT(t)
	budget := NewBudget(1 << 20)
	whole := AppendFrame(nil, message(700<<10))
	read := func() error {
		_, err := NewReader(bytes.NewReader(whole), Limits{}, budget).Read()
		return err
	}
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := NewReader(ours, Limits{}, budget).Read()
		ended <- err
	}()

	_, err := theirs.Write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n{", 60<<20))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read()).To(Succeed())

	_, err = theirs.Write(message(600 << 10))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read()).To(MatchError(errTooLarge))

	g.Expect(theirs.Close()).To(Succeed())
	g.Eventually(ended, time.Minute).Should(Receive(MatchError(errTruncated)))
	g.Expect(read()).To(Succeed())
	g.Expect(budget.used.Load()).To(BeZero())
}

func TestRead_ReturnsStreamErrors(t *testing.T) {
	g := NewWithT(t)
	broken := errors.New("broken pipe")
	frame := AppendFrame(nil, message(100))
	reader := NewReader(io.MultiReader(bytes.NewReader(frame), iotest.ErrReader(broken)), Limits{}, nil)
	_, err := reader.Read()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = reader.Read()
	g.Expect(err).To(MatchError(broken))
	g.Expect(Ended(err)).To(BeTrue())

	_, err = NewReader(io.MultiReader(bytes.NewReader(frame[:60]), iotest.ErrReader(broken)), Limits{}, nil).Read()
	g.Expect(err).To(MatchError(broken))
	g.Expect(err).To(MatchError(errTruncated))
}

func TestRead_ReplacesInvalidUTF8(t *testing.T) {
	g := NewWithT(t)
	body := []byte("\"a\xffb\xc3\u00e4\xed\xa0\x80\U0001F600\xf0\x9f\"")
	read, err := NewReader(bytes.NewReader(AppendFrame(nil, body)), Limits{}, nil).Read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(read)).To(Equal("\"a?b?\u00e4???\U0001F600??\""))
}

func TestLimit_AppliesToNextMessage(t *testing.T) {
	g := NewWithT(t)
	r := NewReader(strings.NewReader("Content-Length: 4\r\n\r\nnullContent-Length: 4\r\n\r\nnull"), Limits{}, nil)
	_, err := r.Read()
	g.Expect(err).NotTo(HaveOccurred())
	r.Limit(Limits{MessageBytes: 3})
	_, err = r.Read()
	g.Expect(err).To(MatchError(errTooLarge))
}
