// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/lspfake/script"
)

// injectFault carries out the planned fault for a message, and calls answer if the fault permits that. answer is nil for notifications.
func (s *server) injectFault(m message, p params, answer func()) {
	if answer == nil {
		answer = func() {}
	}
	fault := s.faultFor(m.Method, p)
	pause := time.Duration(fault.MS) * time.Millisecond
	switch fault.Do {
	case "":
		answer()
	case script.Delay:
		s.answerAfter(m, pause, answer)
	case script.Block:
		time.Sleep(pause)
		answer()
	case script.Silent:
	case script.Freeze:
		s.writing.Lock()
		blockForever()
	case script.Die:
		fail(1, errors.New("dies, as planned"))
	case script.Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		blockForever()
	case script.Fail:
		s.replyError(m.ID, requestFailed, "fails, as planned")
	case script.Empty:
		s.reply(m.ID, nil)
	case script.Huge:
		s.reply(m.ID, map[string]any{"contents": strings.Repeat("x", int(fault.Bytes))})
	case script.LogFlood:
		flood(os.Stderr.Write, bytes.Repeat([]byte("a server that has very much to say\n"), 1024), fault.Bytes)
		answer()
	case script.MessageFlood:
		text := strings.Repeat("x", 32<<10)
		for sent := int64(0); sent < fault.Bytes; sent += int64(len(text)) {
			s.notify("window/logMessage", map[string]any{"type": 4, "message": text})
		}
		answer()
	default:
		s.breakFrames(fault)
	}
}

// breakFrames writes invalid or incomplete frames.
func (s *server) breakFrames(fault script.Fault) {
	body := `{"jsonrpc":"2.0","method":"window/logMessage","params":{"type":4,"message":"half of the truth"}}`
	switch fault.Do {
	case script.DieMidFrame:
		s.write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n%s", len(body)+1000, body))
		fail(1, errors.New("dies in the middle of a message, as planned"))
	case script.Stall:
		s.writing.Lock() // never unlocked, so nothing else is written
		half := max(fault.Bytes, 1000)
		_, _ = fmt.Fprintf(s.out, "Content-Length: %d\r\n\r\n", 2*half)
		flood(s.out.Write, []byte(strings.Repeat(" ", 1000)), half)
		s.journal(script.Line{What: script.Stalled})
	case script.LieShort:
		s.write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n%s", len(body)/2, body))
	case script.LieLong:
		s.write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n%s", len(body)+17, body))
		s.write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n%s", len(body), body))
	case script.Negative:
		s.write(fmt.Appendf(nil, "Content-Length: -1\r\n\r\n%s", body))
	case script.Endless:
		s.write(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n{", fault.Bytes))
		s.writeForever(strings.Repeat(" ", 64<<10))
	case script.HeaderFlood:
		s.writeForever(strings.Repeat("X-Header: of which there are very many\r\n", 100))
	case script.HeaderLine:
		s.write([]byte("X-Header: "))
		s.writeForever(strings.Repeat("x", 64<<10))
	default:
		fail(2, fmt.Errorf("unknown fault %q", fault.Do))
	}
}

// writeForever writes until the reader closes the pipe.
func (s *server) writeForever(text string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		if _, err := s.out.Write([]byte(text)); err != nil {
			return
		}
	}
}

// flood writes a text repeatedly until at least total bytes are written.
func flood(write func([]byte) (int, error), text []byte, total int64) {
	for written := int64(0); written < total; {
		n, err := write(text)
		if err != nil {
			return
		}
		written += int64(n)
	}
}

// answerAfter sends the answer after a pause, unless the request is canceled first.
func (s *server) answerAfter(m message, pause time.Duration, answer func()) {
	cancelled := make(chan struct{})
	id := append([]byte(nil), m.ID...)
	s.mu.Lock()
	s.cancels[string(id)] = cancelled
	s.mu.Unlock()
	go func() {
		select {
		case <-cancelled:
			s.replyError(id, requestCancelled, "cancelled")
		case <-time.After(pause):
			answer()
			s.mu.Lock()
			delete(s.cancels, string(id))
			s.mu.Unlock()
		}
	}()
}

// faultFor returns the fault for a message. A fault that the client requests takes precedence over the script.
func (s *server) faultFor(method string, p params) script.Fault {
	if p.Fake != nil && p.Fake.Do != "" {
		return *p.Fake
	}
	for i, fault := range s.plan.Faults {
		if fault.Method != "" && fault.Method != method || fault.URI != "" && fault.URI != p.TextDocument.URI {
			continue
		}
		if s.matches[i]++; fault.Nth == 0 || s.matches[i] == fault.Nth {
			return fault
		}
	}
	return script.Fault{}
}
