// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// readLimit is how long to wait until a program reads the terminal. A coding agent needs ten seconds to start on a busy machine. Until then it loses what is
	// typed, because it discards the input when it changes the mode of its terminal.
	readLimit = 15 * time.Second
	// showLimit is how long to wait until a program shows a text, in addition to the time that a Typist waits.
	showLimit = 5 * time.Second
	// readEvery is how often to look.
	readEvery = 200 * time.Millisecond
	// stillLooks is for how many looks the screen of a program that was not ready at first has to stay the same. readyLooks is after how many looks a program
	// counts as started although its screen is never still.
	stillLooks, readyLooks = 4, 15
)

// gate carries out the decisions of internal/terminal about keystrokes for one terminal.
type gate struct {
	strokes Keystrokes
	text    string          // typed so far
	before  terminal.Moment // before the first step that is not Ctrl-C
	begun   bool
	unread  bool // no program reads the terminal
}

// pass returns an error if a step must not be typed. silent reports that the terminal has shown nothing since the previous step.
func (g *gate) pass(ctx context.Context, next step, silent bool) error {
	if g.strokes.Look == nil || next.key == KeyInterrupt {
		return nil
	}
	defer func() { g.text += next.text }()
	if !g.begun {
		return g.begin(ctx)
	}
	if !next.key.answers() {
		return nil
	}
	after, verdict, err := g.judge(ctx, next, silent)
	if err != nil {
		return err
	}
	if verdict != terminal.Proceed {
		return &WithheldError{Verdict: verdict, Question: after.Question()}
	}
	return nil
}

// judge returns what the terminal shows and whether a key may be typed. A program has more time to show the text that was typed.
func (g *gate) judge(ctx context.Context, next step, silent bool) (after terminal.Moment, verdict terminal.Verdict, err error) {
	limit, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	err = wait.PollUntilContextCancel(limit, readEvery, true, func(context.Context) (bool, error) {
		if after, err = g.look(ctx); err != nil {
			return false, err
		}
		after.Silent = silent
		verdict = terminal.MayPress(g.before, after)
		if g.text != "" && next.key == KeyEnter {
			verdict = terminal.MayEnter(g.before, after, g.text)
		}
		return verdict != terminal.NotTaken, nil
	})
	if ctx.Err() == nil && limit.Err() != nil {
		err = nil // the verdict is NotTaken
	}
	return after, verdict, err
}

// begin waits until a program is ready for a text. A terminal in canonical mode keeps a line for a program that reads it later; in other modes no program would show
// that the text has arrived, so begin returns an error.
func (g *gate) begin(ctx context.Context) error {
	g.begun = true
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	looks, ready, still := 0, 0, 0 // a program that has just started draws its first screen before it handles keys
	err := wait.PollUntilContextCancel(limit, readEvery, true, func(context.Context) (bool, error) {
		now, err := g.look(ctx)
		if err != nil {
			return false, err
		}
		looks, ready, still = looks+1, ready+1, still+1
		if !now.Ready() {
			ready = 0
		}
		if now.View.Text != g.before.View.Text {
			still = 0
		}
		g.before = now
		return ready > 0 && (looks == 1 || min(ready, still) > stillLooks || ready > readyLooks), nil
	})
	switch {
	case errors.Is(err, ErrNotFound): // the terminal has shown nothing, or its output is not kept; if no program runs, the write fails
		g.strokes.Look = nil
		return nil
	case err != nil && (limit.Err() == nil || ctx.Err() != nil):
		return err
	case g.before.Ready():
		return nil
	case !g.before.Input.Canonical:
		return &WithheldError{Verdict: terminal.NotTaken, Question: g.before.Question()}
	}
	g.unread = true
	return nil
}

func (g *gate) look(ctx context.Context) (terminal.Moment, error) {
	moment, err := g.strokes.Look(ctx)
	if err != nil {
		return moment, fmt.Errorf("look at the terminal: %w", err)
	}
	return moment, nil
}

// conclude returns an error after the last step if no program reads what was typed.
func (g *gate) conclude() error {
	if g.unread {
		return &WithheldError{Verdict: terminal.Unread}
	}
	return nil
}
