// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const statTail = " S 41 42 42 34816 42 4194560 100 0 0 0 3 4 1 2 20 0 7 0 123456 1000 200 184467 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n"

// FuzzParseStat checks that a process cannot pass for another one by its name.
func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"sleep", "a) R 1 1 1", "(((", ")))", "\n7 (x) Z 1 1 1 0 0", ""} {
		f.Add([]byte(name))
		f.Add([]byte("7 (" + name + ")" + statTail))
	}
	want := Stat{
		Process: Process{PID: 7, Ticks: 123456}, State: 'S', Parent: 41, Group: 42, Session: 42, Foreground: 42, Threads: 7, Memory: 200 * int64(os.Getpagesize()), CPU: 100 * time.Millisecond,
		status: 9,
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parse(7, text) // must not panic on any input
		got, err := parse(7, append(append([]byte("7 ("), text...), []byte(")"+statTail)...))
		if err != nil || got != want {
			t.Errorf("process named %q: %+v, %v", text, got, err)
		}
	})
}

// FuzzParseUsers checks that a process cannot pass for one of another user by its name.
func FuzzParseUsers(f *testing.F) {
	f.Add([]byte("sleep"))
	f.Add([]byte("Uid:\t0\t0\t0\t0"))
	f.Fuzz(func(t *testing.T, name []byte) {
		_, _ = parseUsers(7, name) // must not panic on any input
		text := fmt.Appendf(nil, "Name:\t%s\nUid:\t1000\t0\t65534\t0\n", bytes.ReplaceAll(name, []byte("\n"), []byte(`\n`)))
		got, err := parseUsers(7, text)
		if err != nil || !slices.Equal(got, []uint32{1000, 0, 65534}) {
			t.Errorf("process named %q: %v, %v", name, got, err)
		}
	})
}

func TestUsers_OfThisProcess(t *testing.T) {
	g := NewWithT(t)
	self, err := Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(Users(self)).To(Equal([]uint32{uint32(os.Getuid()), uint32(os.Geteuid()), uint32(os.Geteuid())}))
	self.Ticks++ // an earlier process with this PID
	_, err = Users(self)
	g.Expect(err).To(MatchError(ErrGone))
}

func TestParseStat_RejectsTruncatedText(t *testing.T) {
	g := NewWithT(t)
	for n := range len(statTail) / 3 {
		_, err := parse(7, fmt.Appendf(nil, "7 (x)%s", statTail[:n]))
		g.Expect(err).To(HaveOccurred())
	}
}
