// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// quietBefore is how long the terminal has to be silent before text is typed, so that earlier output has arrived.
	quietBefore = 100 * time.Millisecond
	// quietAfter is how long the terminal has to be silent after Ctrl-C or text before more is typed. Keys typed after Ctrl-C are lost until the program has
	// ended and the shell shows its prompt. Coding agents treat text and Enter that arrive within up to 40 ms as a paste, in which Enter is a new line; a
	// busy machine stretches that time. After a late reaction, the silence has to last twice as long as that reaction took, at most quietLimit.
	quietAfter = 500 * time.Millisecond
	// quietAfterPaste replaces quietAfter for a program that has requested bracketed paste. On a machine with six times as many busy processes as cores, Gemini
	// CLI still treated an Enter 500 ms after a paste as a new line.
	quietAfterPaste = time.Second
	// quietLimit bounds the wait for a reaction and for silence, because a program may not echo its input, and a spinner is never silent.
	quietLimit = 2 * time.Second
	// pasteLimit replaces quietLimit for the wait for a reaction of a program that has requested bracketed paste, because such a program shows what it reads:
	// Gemini CLI needed more than two seconds on a machine with ten times as many busy processes as cores.
	pasteLimit = 6 * time.Second
)

// Escape sequences of bracketed paste (xterm). A program turns bracketed paste on with pasteOn and off with pasteOff. While it is on, a terminal sends pasted
// text between pasteBegin and pasteEnd.
var (
	pasteOn    = []byte("\x1b[?2004h")
	pasteOff   = []byte("\x1b[?2004l")
	pasteBegin = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")

	cursorKeysOn  = []byte("\x1b[?1h")
	cursorKeysOff = []byte("\x1b[?1l")
)

// Typist types with pauses, as a user does: Ctrl-C, the text and Enter one after the other, each after the program has reacted to the previous one. It is also
// an io.Writer: while it types, the caller must write the output of the terminal to it. A Typist that receives no output waits for the minimum times.
//
// A busy program may take longer than the minimum to read its input, and silence does not show that the program has read the input. Gemini CLI drops an Enter
// that it reads together with the text before it. Therefore a Typist that receives output waits for output after each write.
type Typist struct {
	moved chan struct{} // holds a value if there was output since the last check

	mu         sync.Mutex
	tail       []byte // the last bytes of the output: a sequence may arrive in two parts
	shown      bool   // there was output since the last step
	pastes     bool   // the program has requested bracketed paste
	cursorKeys bool   // the program has requested application cursor keys
}

// NewTypist returns a Typist for one terminal.
func NewTypist() *Typist { return &Typist{moved: make(chan struct{}, 1)} }

// Write receives output of the terminal. It never fails.
func (t *Typist) Write(output []byte) (int, error) {
	t.mu.Lock()
	seen := append(t.tail, output...)
	turn(&t.pastes, seen, pasteOn, pasteOff)
	turn(&t.cursorKeys, seen, cursorKeysOn, cursorKeysOff)
	t.tail, t.shown = bytes.Clone(seen[max(0, len(seen)-len(pasteOn)+1):]), true
	t.mu.Unlock()
	select {
	case t.moved <- struct{}{}:
	default:
	}
	return len(output), nil
}

// turn sets a mode as the last of the sequences that turn it on and off in output.
func turn(mode *bool, output, on, off []byte) {
	if last, ended := bytes.LastIndex(output, on), bytes.LastIndex(output, off); last != ended {
		*mode = last > ended
	}
}

// Type writes keystrokes to a terminal. If the program is never silent, each of the keys, the text and Ctrl-C takes at most 8 s. Text of several words or lines is
// pasted if the program has requested bracketed paste: the program then does not submit the lines one by one, and interprets no character as a key
// (Gemini CLI opens its help at a question mark). A single word is typed, because it may be meant as keys, such as the number of an answer.
//
// With strokes.Look, Type first waits until a program reads the terminal, for at most readLimit. A key that can answer a question is typed only if the question
// for which the keystrokes are meant still stands; otherwise Type returns a *WithheldError.
func (t *Typist) Type(ctx context.Context, to io.Writer, strokes Keystrokes) error {
	gate := &gate{strokes: strokes}
	for i, step := range steps(strokes) {
		quiet := time.Duration(0)
		switch {
		case i > 0:
			quiet = quietAfter
		case step.pastes(): // wait for output in which the program may request bracketed paste
			quiet = quietBefore
		}
		if err := t.settle(ctx, quiet, i > 0); err != nil {
			return err
		}
		if err := gate.pass(ctx, step, t.silent()); err != nil {
			return err
		}
		keys := t.encode(step)
		select {
		case <-t.moved: // this output preceded the write, so it is not a reaction
		default:
		}
		if _, err := to.Write(keys); err != nil {
			return err
		}
	}
	return gate.conclude()
}

// step is one write: the text, or one key.
type step struct {
	text string
	key  Key
}

// pastes reports whether the step is a text of several words or lines.
func (s step) pastes() bool { return len(s.text) > 1 && strings.ContainsAny(s.text, " \r\n") }

func steps(strokes Keystrokes) []step {
	var all []step
	if strokes.Interrupt {
		all = append(all, step{key: KeyInterrupt})
	}
	if strokes.Text != "" {
		all = append(all, step{text: strokes.Text})
	}
	for _, key := range strokes.Keys {
		all = append(all, step{key: key})
	}
	return all
}

// encode returns the bytes of a step, and begins a new period in which the terminal may be silent.
func (t *Typist) encode(s step) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown = false
	switch {
	case s.key != "":
		return s.key.bytes(t.cursorKeys)
	case s.pastes() && t.pastes:
		text := strings.ReplaceAll(s.text, string(pasteEnd), "") // pasteEnd in the text would end the paste early
		return slices.Concat(pasteBegin, []byte(text), pasteEnd)
	}
	return []byte(s.text)
}

// silent reports whether the terminal has shown nothing since the last step. It is false for a Typist that receives no output.
func (t *Typist) silent() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail != nil && !t.shown
}

// settle waits until the terminal has been silent for the duration quiet, but at most for quietLimit. If reaction is true and the Typist has ever received
// output, settle first waits for new output: at most for pasteLimit if the program has requested bracketed paste, else for quietLimit.
func (t *Typist) settle(ctx context.Context, quiet time.Duration, reaction bool) error {
	if quiet == 0 {
		return ctx.Err()
	}
	t.mu.Lock()
	reaction = reaction && t.tail != nil
	bound := quietLimit
	if reaction && t.pastes {
		bound, quiet = pasteLimit, max(quiet, quietAfterPaste)
	}
	t.mu.Unlock()
	began, limit := time.Now(), time.After(bound)
	for {
		var silence <-chan time.Time
		if !reaction {
			silence = time.After(quiet)
		}
		select {
		case <-t.moved:
			if reaction {
				late := time.Since(began)
				reaction, quiet = false, max(quiet, min(2*late, quietLimit))
				limit = time.After(max(quietLimit-late, quiet))
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
