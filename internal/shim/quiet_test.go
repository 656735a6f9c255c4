// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestQuiet_RemovesTerminalQueries(t *testing.T) {
	questions := []string{
		"\x1b[c", "\x1b[0c", "\x1b[>c", "\x1b[=0c", "\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1b[x", "\x1b[?2026$p", "\x1b[4$p", "\x1b[>q", "\x1b[>0q", "\x1b[?u",
		"\x1b[14t", "\x1b[18t", "\x1b]10;?\x07", "\x1b]11;?\x1b\\", "\x1b]4;1;?\x07", "\x1bP$qm\x1b\\", "\x1bP+q544e\x1b\\",
		"\x1bZ", "\x05", "\x07", "\x1b[1$w", "\x1b[2$u", "\x1b[14;2t", "\x1b[8;24;80t", "\x1b[?4m", "\x1b[?1;1S", "\x1b[1;1;1;1;24;80*y", "\x1b[5i",
		"\x1b]52;c;aGk=\x07", "\x1b]52;c;?\x1b\\", "\x1b]52;c;" + strings.Repeat("aGk=", 500) + "\x1b\\", "\x1b]9;done\x07", "\x1b]777;notify;a;b\x1b\\",
		"\x1b]99;i=1;hello\x1b\\", "\x1b]1337;ReportCellSize\x07", "\x1b]21;foreground=?\x1b\\", "\x1b_Gi=1,a=q;AAAA\x1b\\",
		"\x1b_Ga=T;" + strings.Repeat("A", 2*longestQuery) + "\x1b\\",
	}
	others := []string{
		"plain", "größe", "\x1b[31m", "\x1b[2J", "\x1b[1;5H", "\x1b[?1049h", "\x1b[>4;1m", "\x1b[>4n", "\x1b[u", "\x1b[>1u", "\x1b[22;0t", "\x1b[23t", "\x1b]9;4;1;50\x07", "\x1b]1337;File=inline=1:AAAA\x07", "\x1b[3S", "\x1b]2;a title?\x07",
		"\x1b]8;;http://x/?a\x1b\\", "\x1b]11;rgb:00/00/00\x07", "\x1b7", "\x1b(B", "\x1b=", "\x1b[!p", "\x1b[2 q", "\x1bPq#0\x1b\\", "100% ? c n",
	}
	all, want := strings.Join(questions, "a")+"b", strings.Repeat("a", len(questions)-1)+"b"
	for i, text := range others {
		question := questions[i%len(questions)]
		all, want = all+text+question+text, want+text+text
	}
	for _, size := range []int{1, 2, 3, 7, 100, len(all)} {
		g := NewWithT(t)
		var out bytes.Buffer
		q := Quiet(&out, len(all))
		for p := []byte(all); len(p) > 0; p = p[min(size, len(p)):] {
			n, err := q.Write(p[:min(size, len(p))])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(n).To(Equal(min(size, len(p))))
		}
		g.Expect(out.String()).To(Equal(want), "in pieces of %d bytes", size)
		_, err := q.Write([]byte(all))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out.String()).To(Equal(want+all), "new output is unchanged")
	}
}

func TestQuiet_LimitsBufferedOutput(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	q := Quiet(&out, 1<<20)
	long := "\x1b]2;" + strings.Repeat("x", 10*longestQuery)
	_, err := q.Write([]byte(long))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.String()).To(Equal(long), "an unterminated sequence")
	// A sequence that begins in the old output and ends in the new output is passed on.
	out.Reset()
	q = Quiet(&out, 3)
	for _, part := range []string{"\x1b[", "6", "nnew"} {
		_, err := q.Write([]byte(part))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(out.String()).To(Equal("\x1b[6nnew"))
}
