// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/statedir"
)

// Window is the argument that makes the shim a viewer of another shim's terminal: the viewer copies the output of the other terminal to its own terminal, and
// sends typed input to the other terminal. The arguments that follow are the directory of the UID and a display name. When an incarnation ends, the viewer
// waits for the next one.
const Window = "--window"

const (
	// seekFirst is the first interval for polling for a shim. The interval doubles up to seekLast. Polling costs less than an inotify instance, and the number of
	// inotify instances per user is small.
	seekFirst = 10 * time.Millisecond
	seekLast  = 500 * time.Millisecond
	// seekWithout is how long the record may be missing before the window closes. The record is missing if its object no longer exists.
	seekWithout = time.Minute
	dialTimeout = 2 * time.Second
)

// clearScreen is what a window writes to its own terminal to move the cursor to the first cell and to clear the screen.
const clearScreen = "\x1b[H\x1b[2J"

// setBack leaves the alternate screen and sets back all modes that modes restores, but not the title.
func setBack() string {
	var text strings.Builder
	text.WriteString("\x1b[?1049l\x1b[0m\x1b7") // some modes move the cursor
	for _, mode := range offFirst {
		text.WriteString("\x1b[?" + mode + "l")
	}
	for _, mode := range onFirst {
		text.WriteString("\x1b[?" + mode + "h")
	}
	text.WriteString("\x1b>\x1b[>4m\x1b[<" + strconv.Itoa(maxKeyboards) + "u\x1b[4l\x1b[0 q\x1b(B\x0f\x1b[r\x1b8")
	return text.String()
}

// window is the state of a process started with the argument Window.
type window struct {
	dir    string
	client atomic.Pointer[Client]
	before string // token of the newest incarnation when the window was opened
	token  string // token of the incarnation that is or was shown
	told   string // token of the incarnation that the last message was about
}

func lookThrough(dir string, name []string) int {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(40)
	if err := makeRaw(0); err != nil {
		fmt.Fprintln(os.Stderr, "this command is run by berth in a terminal, not by hand:", err)
		return 1
	}
	w := &window{dir: dir}
	if record, found := w.record(); found {
		w.before = record.Token
	}
	if len(name) > 0 && name[0] != "" {
		_, _ = fmt.Fprintf(os.Stdout, "\x1b]2;%s\x07", name[0])
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	go w.resize(resized)
	go w.pass()
	return w.run()
}

// run shows one incarnation after another, until the record of the UID has been missing for seekWithout.
func (w *window) run() int {
	pause, missing := seekFirst, time.Now()
	for {
		record, found := w.record()
		switch {
		case found && w.show(record):
			pause = seekFirst
		case !found && time.Since(missing) > seekWithout:
			return 0
		}
		if found {
			missing = time.Now()
		}
		time.Sleep(pause)
		pause = min(2*pause, seekLast)
	}
}

func (w *window) record() (record Record, found bool) {
	found, err := statedir.ReadJSON(filepath.Join(w.dir, RecordFile), &record)
	return record, found || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// show displays an incarnation until it ends. It returns false if there was nothing to display.
func (w *window) show(record Record) bool {
	var end End
	ended, _ := statedir.ReadJSON(filepath.Join(w.dir, EndFile), &end)
	switch {
	case ended && end.Token == record.Token:
		w.tell(record, describe(end)+"; waiting for the next incarnation")
		return false
	case !record.Terminal:
		w.tell(record, "runs without a terminal; to see its output, run berth logs")
		return false
	}
	client, err := w.connect(record.Token)
	if err != nil {
		return false
	}
	out := &quiet{out: os.Stdout}
	if record.Token == w.token || record.Token == w.before {
		out.left = client.Replay
	}
	if record.Token == w.token {
		_, _ = io.WriteString(os.Stdout, clearScreen) // the replay repeats what was shown
	}
	w.token = record.Token
	w.client.Store(client)
	w.size() // the size may have changed since connect
	_, _ = io.Copy(out, client.Conn)
	w.client.Store(nil)
	_ = client.Conn.Close()
	_, _ = io.WriteString(os.Stdout, setBack())
	return true
}

// connect attaches to the shim with a token.
func (w *window) connect(token string) (*Client, error) {
	client, err := Dial(w.dir, token, dialTimeout)
	if err != nil {
		return nil, err
	}
	columns, rows := size()
	if err := client.AttachBehind(columns, rows); err != nil { // berth attach may have been faster
		_ = client.Conn.Close()
		return nil, err
	}
	return client, nil
}

// tell prints a message about an incarnation, once.
func (w *window) tell(record Record, text string) {
	if w.told == record.Token || w.token != record.Token && w.before == record.Token {
		return // already printed, or this window did not show that incarnation
	}
	w.told = record.Token
	_, _ = fmt.Fprintf(os.Stdout, "\r\n[berth] incarnation %d %s\r\n", record.Incarnation, text)
}

func describe(end End) string {
	switch {
	case end.Failure != nil:
		return "could not be started: " + end.Failure.Message
	case end.Exit == nil || !end.Exit.Known:
		return "ended with unknown status"
	case end.Exit.Signal != "":
		return "was terminated by " + end.Exit.Signal
	}
	return fmt.Sprintf("ended with exit code %d", end.Exit.Code)
}

// pass forwards typed input, and drops it while no incarnation runs. It exits the process when the terminal is gone.
func (w *window) pass() {
	buf := make([]byte, 4<<10)
	for {
		n, err := os.Stdin.Read(buf)
		if client := w.client.Load(); client != nil && n > 0 {
			_, _ = client.Write(buf[:n])
		}
		if err != nil {
			os.Exit(0)
		}
	}
}

func (w *window) resize(resized <-chan os.Signal) {
	for range resized {
		w.size()
	}
}

func (w *window) size() {
	if client := w.client.Load(); client != nil {
		_ = client.Resize(size())
	}
}

func size() (columns, rows int32) {
	winsize, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int32(winsize.Col), int32(winsize.Row)
}

// makeRaw puts a terminal into raw mode.
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB
	t.Cflag |= unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
