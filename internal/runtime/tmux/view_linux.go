// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// mostUnread limits the output that a view keeps for a client that does not read, in bytes. Beyond it the view drops the output, and draws the screen again as
// soon as the client reads. So a slow client neither blocks the program nor takes more memory.
const mostUnread = 256 << 10

// view is a tmux client in control mode that shows the pane of an adopted program.
type view struct {
	runtime *Runtime
	rec     *record
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stdout  io.ReadCloser
	said    bounded // error messages of the tmux program

	changed chan struct{} // there is output, or it was lost
	drawn   chan struct{} // closed when the first screen was received
	last    chan struct{} // closed when the reply lastReply was received

	sending sync.Mutex // orders the commands as the replies
	mu      sync.Mutex
	asked   []replyKind // the replies that tmux still has to send, in order
	drawing bool        // a screen is requested
	stale   bool        // the screen has changed its size since it was requested
	unread  []byte
	lost    bool // output was dropped since the last screen

	// Used only by the goroutine that reads.
	size     runtime.Terminal // the first size of the client; zero if it is not known
	attached bool
	state    paneState
	screen   []byte
	quiet    io.Writer
}

// replyKind is the purpose of a reply.
type replyKind int

const (
	noReply     replyKind = iota // the reply is empty
	stateReply                   // the state of the pane
	screenReply                  // the lines of the screen
	restReply                    // the beginning of an incomplete escape sequence
	lastReply                    // everything before the exit of the program was received
)

// view starts a tmux client for an adopted program.
func (r *Runtime) view(ctx context.Context, rec *record, size runtime.Terminal) (*view, error) {
	v := &view{runtime: r, rec: rec, size: size, changed: make(chan struct{}, 1), drawn: make(chan struct{}), last: make(chan struct{})}
	// -E keeps the environment of the session, which a client would otherwise update from its own.
	v.cmd = r.clientOf(rec).command(ctx, "-C", "attach-session", "-E", "-t", rec.SessionID)
	v.cmd.Stderr, v.cmd.WaitDelay = &v.said, time.Second
	var err error
	if v.stdin, err = v.cmd.StdinPipe(); err == nil {
		v.stdout, err = v.cmd.StdoutPipe()
	}
	if err == nil {
		err = v.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start tmux: %w", err)
	}
	return v, nil
}

// close ends the client. The server has copies of the pipes, so they are closed before the wait for the client.
func (v *view) close() {
	_ = v.stdin.Close()
	_ = v.stdout.Close()
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// send sends a line of commands, one reply for each command.
func (v *view) send(commands string, replies ...replyKind) error {
	v.sending.Lock()
	defer v.sending.Unlock()
	v.mu.Lock()
	v.asked = append(v.asked, replies...)
	v.mu.Unlock()
	_, err := io.WriteString(v.stdin, commands+"\n")
	return err
}

// joined formats commands as one line.
func joined(commands [][]string) string {
	lines := make([]string, len(commands))
	for i, command := range commands {
		lines[i] = sequence(command...)
	}
	return strings.Join(lines, " ; ")
}

// resize sets the size of the client. The size of the window follows it, as for any client of tmux.
func (v *view) resize(size runtime.Terminal) error {
	columns, rows := min(size.Columns, largestSize), min(size.Rows, largestSize)
	if columns <= 0 || rows <= 0 {
		return nil
	}
	return v.send(fmt.Sprintf("refresh-client -C %dx%d", columns, rows), noReply)
}

// draw requests the screen, unless it is requested already. tmux executes the commands of a line without reading output of the program in between.
func (v *view) draw() error {
	v.mu.Lock()
	v.stale = v.drawing
	again := v.drawing
	v.drawing = true
	v.mu.Unlock()
	if again {
		return nil
	}
	return v.capture()
}

// drawLast requests the screen of a program that has exited, because tmux discards output that it has not sent to a client when the program exits. After the
// screen it sends lastReply.
func (v *view) drawLast() error {
	return v.capture([]string{"display-message", "-p", "end"})
}

// capture requests the screen, and then runs a command whose reply is lastReply, if there is one.
func (v *view) capture(last ...[]string) error {
	pane := v.rec.PaneID
	commands := [][]string{
		{"display-message", "-p", "-t", pane, stateFormat()}, {"capture-pane", "-p", "-e", "-N", "-t", pane}, {"capture-pane", "-p", "-P", "-C", "-t", pane},
	}
	replies := []replyKind{stateReply, screenReply, restReply, lastReply}
	return v.send(joined(append(commands, last...)), replies[:len(commands)+len(last)]...)
}

// read receives messages of tmux until the client is detached, which it reports as io.EOF.
func (v *view) read() error {
	messages := events{bufio.NewReader(v.stdout)}
	for {
		e, err := messages.next()
		if err != nil {
			return err
		}
		switch e.kind {
		case outputEvent:
			if e.pane == v.rec.PaneID {
				v.add(e.data)
			}
		case replyEvent:
			switch {
			case e.asked:
				err = v.receive(e.data)
			case !v.attached:
				err = v.begin()
			}
		case errorEvent:
			if e.asked || v.quiet == nil { // before the first screen, the command that attaches may fail
				err = v.failed(string(e.data))
			}
		case layoutEvent:
			err = v.draw()
		case exitEvent:
			return io.EOF
		}
		if err != nil {
			return err
		}
	}
}

// begin sends the first commands, after the reply to the command that attaches. Before that reply, the client has no session, and tmux rejects them.
func (v *view) begin() error {
	v.attached = true
	if err := v.resize(v.size); err != nil {
		return err
	}
	return v.draw()
}

// failed returns the error for a command that failed. After the exit of the program its pane is gone, which is the normal end.
func (v *view) failed(message string) error {
	if strings.HasPrefix(message, "can't find") {
		return io.EOF
	}
	return &refusal{text: message}
}

// receive handles the reply to the oldest command without one.
func (v *view) receive(data []byte) (err error) {
	v.mu.Lock()
	kind := noReply
	if len(v.asked) > 0 {
		kind = v.asked[0]
		v.asked = v.asked[1:]
	}
	v.mu.Unlock()
	switch kind {
	case stateReply:
		if v.state, err = parseState(data); err == nil && !v.state.isPane(v.rec.Server, v.rec.Pane) {
			err = fmt.Errorf("%w: another program was started in the pane", runtime.ErrNotFound)
		}
	case screenReply:
		v.screen = data
	case restReply:
		err = v.restart(v.state.draw(v.screen, unescape(data)))
		v.screen = nil
	case lastReply:
		close(v.last)
	}
	return err
}

// restart replaces everything that was lost by a screen.
func (v *view) restart(screen []byte) error {
	// tmux itself answers the queries of the program. A second answer, of the user's terminal, would be input for the program.
	v.quiet = shim.Quiet(appender{v}, math.MaxInt)
	v.mu.Lock()
	if v.lost {
		v.unread = nil
	}
	v.lost, v.drawing = false, false
	v.unread = append(v.unread, screen...)
	stale := v.stale
	v.mu.Unlock()
	v.notify()
	select {
	case <-v.drawn:
	default:
		close(v.drawn)
	}
	if stale {
		return v.draw()
	}
	return nil
}

// add keeps output for the client. Output before the first screen is part of that screen.
func (v *view) add(output []byte) {
	if v.quiet != nil {
		_, _ = v.quiet.Write(output) // never fails
	}
}

// appender is an io.Writer that keeps what is written to it for the client.
type appender struct{ v *view }

func (a appender) Write(output []byte) (int, error) {
	v := a.v
	v.mu.Lock()
	if v.lost || len(v.unread)+len(output) > mostUnread {
		v.lost, v.unread = true, nil
	} else {
		v.unread = append(v.unread, output...)
	}
	v.mu.Unlock()
	v.notify()
	return len(output), nil
}

func (v *view) notify() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// take returns the output that the client has not received, and whether output was lost.
func (v *view) take() (output []byte, lost bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	output, v.unread = v.unread, nil
	return output, v.lost && !v.drawing
}

// awaitScreen waits for the first screen. Before that no input may be sent, because the screen also shows that the pane is the right one.
func (v *view) awaitScreen(ctx context.Context) error {
	timer := time.NewTimer(drawWithin)
	defer timer.Stop()
	select {
	case <-v.drawn:
		return nil
	case <-timer.C:
		return fmt.Errorf("tmux did not respond on socket %s within %s", v.rec.Socket, drawWithin)
	case <-ctx.Done():
	}
	if err := ended(context.Cause(ctx)); err != nil {
		return err
	}
	if errors.Is(context.Cause(ctx), io.EOF) { // the tmux client has exited
		v.close() // so that all of its messages were received
		return fmt.Errorf("%w: tmux does not show the session: %s", runtime.ErrNotFound, strings.TrimSpace(v.said.String()))
	}
	return nil
}

// show writes the output until the context ends, and then what was received before.
func (v *view) show(ctx context.Context, out io.Writer) error {
	for {
		done := ctx.Err() != nil // checked before the output is taken, so that none is missed
		output, lost := v.take()
		if len(output) > 0 {
			if _, err := out.Write(output); err != nil {
				return err
			}
			continue
		}
		if done {
			return nil //nolint:nilerr // the end of the context ends the view
		}
		if lost && v.draw() != nil {
			return nil //nolint:nilerr // the client has exited, which ends the context
		}
		select {
		case <-v.changed:
		case <-ctx.Done():
		}
	}
}
