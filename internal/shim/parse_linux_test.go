// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

const statTail = " S 41 42 42 34816 42 4194560 100 0 0 0 3 4 0 0 20 0 7 0 123456 1000 200 184467 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n"

// FuzzParseStat checks that a process cannot pass for another one by its name.
func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"sleep", "a) R 1 1 1", "(((", ")))", "\n7 (x) Z 1 1 1 0 0", ""} {
		f.Add([]byte(name))
		f.Add([]byte("7 (" + name + ")" + statTail))
	}
	want := stat{Process: Process{PID: 7, Ticks: 123456}, state: 'S', parent: 41, group: 42, session: 42, threads: 7, status: 9}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parseStat(7, text) // must not panic on any input
		got, err := parseStat(7, append(append([]byte("7 ("), text...), []byte(")"+statTail)...))
		if err != nil || got != want {
			t.Errorf("process named %q: %+v, %v", text, got, err)
		}
	})
}

// FuzzReadFile checks that ReadFile returns an error for a damaged record, and never reports the record as found.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"uid":"web","incarnation":3,"token":"t"}`))
	f.Add([]byte(`{"incarnation":`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), RecordFile)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var record Record
		found, err := ReadFile(path, &record)
		if found == (err != nil) {
			t.Errorf("%q: found %v with the error %v", text, found, err)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	var frame bytes.Buffer
	_ = writeFrame(&frame, Call{Version: 1, Verb: VerbHello})
	f.Add(frame.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	f.Fuzz(func(_ *testing.T, text []byte) {
		var call Call
		_ = readFrame(bytes.NewReader(text), &call)
		_, _, _ = readInput(bytes.NewReader(text), nil)
	})
}

func TestParseStat_RejectsTruncatedText(t *testing.T) {
	g := NewWithT(t)
	for n := range len(statTail) / 3 {
		_, err := parseStat(7, fmt.Appendf(nil, "7 (x)%s", statTail[:n]))
		g.Expect(err).To(HaveOccurred())
	}
}
