// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// quietBefore is how long the terminal has to be silent before text is typed, so that earlier output has arrived.
	quietBefore = 100 * time.Millisecond
	// quietAfter is how long the terminal has to be silent after Ctrl-C or text before more is typed. Keys typed after Ctrl-C are lost until the program has
	// ended and the shell shows its prompt. Coding agents treat text and Enter that arrive within up to 40 ms as a paste, in which Enter is a new line; a
	// busy machine stretches that time. After a late reaction, the silence has to last twice as long as that reaction took.
	quietAfter = 500 * time.Millisecond
	// quietLimit bounds the wait for a reaction and for silence, because a program may not echo its input, and a spinner is never silent.
	quietLimit = 2 * time.Second

	interruptKey = '\x03'
	enterKey     = '\r'
)

// The sequences of bracketed paste (xterm): a program requests it with the first and ends it with the second; pasted text is sent between the last two.
var (
	pasteOn    = []byte("\x1b[?2004h")
	pasteOff   = []byte("\x1b[?2004l")
	pasteBegin = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")
)

// Typist types with pauses, as a user does: Ctrl-C, the text and Enter one after the other, each after the program has reacted to the previous one. It
// is an io.Writer to which the caller writes the output of the terminal during that time. A Typist that receives no output waits for the minimum times.
//
// A busy program may take longer than the minimum to read its input, and silence does not show that it has read it. Gemini CLI drops an Enter that it
// reads together with the text before it. Therefore a Typist that receives output waits for output after each write.
type Typist struct {
	moved chan struct{} // holds a value if there was output since the last check

	mu     sync.Mutex
	tail   []byte // the last bytes of the output: a sequence may arrive in two parts
	pastes bool   // the program has requested bracketed paste
}

// NewTypist returns a Typist for one terminal.
func NewTypist() *Typist { return &Typist{moved: make(chan struct{}, 1)} }

// Write receives output of the terminal. It never fails.
func (t *Typist) Write(output []byte) (int, error) {
	t.mu.Lock()
	seen := append(t.tail, output...)
	if on, off := bytes.LastIndex(seen, pasteOn), bytes.LastIndex(seen, pasteOff); on != off {
		t.pastes = on > off
	}
	t.tail = bytes.Clone(seen[max(0, len(seen)-len(pasteOn)+1):])
	t.mu.Unlock()
	select {
	case t.moved <- struct{}{}:
	default:
	}
	return len(output), nil
}

// Type writes the input to a terminal. If the program is never silent, Type takes at most 6 s longer than the writes. Text of several words or lines is
// pasted if the program has requested bracketed paste: the program then does not submit the lines one by one, and interprets no character as a key
// (Gemini CLI opens its help at a question mark). A single word is typed, because it may be meant as keys, such as the number of an answer.
func (t *Typist) Type(ctx context.Context, terminal io.Writer, input []byte) error {
	steps := steps(input)
	for i, keys := range steps {
		words := len(keys) > 1 && bytes.ContainsAny(keys, " \r\n")
		var quiet time.Duration
		switch {
		case i > 0:
			quiet = quietAfter
		case words: // wait for output in which the program may request bracketed paste
			quiet = quietBefore
		}
		if err := t.settle(ctx, quiet, i > 0); err != nil {
			return err
		}
		if words {
			keys = t.pasted(keys)
		}
		select {
		case <-t.moved: // this output preceded the write, so it is not a reaction
		default:
		}
		if _, err := terminal.Write(keys); err != nil {
			return err
		}
	}
	return nil
}

// steps splits input into Ctrl-C at its beginning, the text, and Enter at its end. It omits empty parts.
func steps(input []byte) [][]byte {
	text := bytes.TrimLeft(input, string(interruptKey))
	interrupts, enter := input[:len(input)-len(text)], []byte(nil)
	if bytes.HasSuffix(text, []byte{enterKey}) {
		text, enter = text[:len(text)-1], text[len(text)-1:]
	}
	return slices.DeleteFunc([][]byte{interrupts, text, enter}, func(keys []byte) bool { return len(keys) == 0 })
}

// settle waits until there has been no output for the duration quiet, for at most quietLimit. If reaction is true, it first waits for output, unless the
// Typist has never received any.
func (t *Typist) settle(ctx context.Context, quiet time.Duration, reaction bool) error {
	if quiet == 0 {
		return ctx.Err()
	}
	t.mu.Lock()
	reaction = reaction && t.tail != nil
	t.mu.Unlock()
	began, limit := time.Now(), time.After(quietLimit)
	for {
		var silence <-chan time.Time
		if !reaction {
			silence = time.After(quiet)
		}
		select {
		case <-t.moved:
			if reaction {
				reaction, quiet = false, max(quiet, 2*time.Since(began))
			}
		case <-silence:
			return nil
		case <-limit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pasted returns text as a terminal sends it when it is pasted, if the program has requested bracketed paste; otherwise it returns text unchanged.
func (t *Typist) pasted(text []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.pastes {
		return text
	}
	text = bytes.ReplaceAll(text, pasteEnd, nil) // pasteEnd in the text would end the paste early
	return slices.Concat(pasteBegin, text, pasteEnd)
}
