// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	. "github.com/onsi/gomega"
)

func TestContainers_AreLimited(t *testing.T) {
	g := NewWithT(t)
	config := outside(launch{}, &engine{})
	g.Expect(config.PidsLimit).To(HaveValue(BeEquivalentTo(maxProcesses)))
	g.Expect(config.SecurityOpt).To(ConsistOf("no-new-privileges"))
	g.Expect(config.Privileged).To(BeFalse())
	g.Expect(config.CapAdd).To(BeEmpty())
}

// frame returns one message in the format of an engine.
func frame(stream byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{stream, 0, 0, 0}, uint32(len(text))), text...)
}

func FuzzNextFrame(f *testing.F) {
	f.Add(append(frame(1, "2026-11-24T03:00:00.000000001Z hello\n"), frame(2, "2026-11-24T03:00:00Z x")...))
	f.Add(frame(3, "no log"))
	f.Add(frame(1, "no time"))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, text []byte) {
		in := bytes.NewReader(text)
		var buffer []byte
		for {
			before := in.Len()
			got, _, said, err := next(in, buffer)
			if cap(got) > 2*largeFrame {
				t.Errorf("a message took %d bytes", cap(got))
			}
			if errors.Is(err, io.EOF) || err != nil {
				return
			}
			if len(said) > before || in.Len() >= before {
				t.Errorf("%d bytes of %d were read", len(said), before)
			}
			buffer = got
		}
	})
}
