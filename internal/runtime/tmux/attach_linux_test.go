// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// attachment is an attached client.
type attachment struct {
	keys   *io.PipeWriter
	view   *clientOutput
	resize chan runtime.Terminal
	ended  chan error
}

// attachTo attaches a client and waits until it shows the text. It detaches the client at the end of the test.
func (f *fixture) attachTo(uid types.UID, text string) *attachment {
	f.Helper()
	in, keys := io.Pipe()
	a := &attachment{keys: keys, view: &clientOutput{}, resize: make(chan runtime.Terminal, 1), ended: make(chan error, 1)}
	ctx, detach := context.WithCancel(f.ctx)
	a.resize <- runtime.Terminal{Columns: 80, Rows: 24}
	go func() { a.ended <- f.Attach(ctx, uid, in, a.view, a.resize) }()
	f.Cleanup(func() {
		detach()
		_ = keys.Close()
	})
	f.Eventually(a.view.String).WithTimeout(patience).Should(ContainSubstring(text))
	return a
}

func (a *attachment) typeKeys(f *fixture, keys string) {
	f.Helper()
	_, err := io.WriteString(a.keys, keys)
	f.Expect(err).NotTo(HaveOccurred())
}

// The input of an attached client goes to the program: the prefix key of tmux and what follows it run no command of tmux and reach no other session.
func TestAttach_InterpretsNoInputAsTmuxCommand(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("other", "terminal")
	f.newForeignSession("agent", "terminal")
	f.mustTmux("set-option", "-g", "assume-paste-time", "0") // else tmux takes keys that arrive together for a paste, in which no key is a command
	uid := f.adopt("agent")
	a := f.attachTo(uid, "ready")
	planted := filepath.Join(t.TempDir(), "planted")
	a.typeKeys(f, "\x02:run-shell 'touch "+planted+"'\r")
	a.typeKeys(f, "\x02:switch-client -t =other\r")
	a.typeKeys(f, "hello\r")
	f.awaitText(uid, "got <hello>")
	f.awaitText(uid, "run-shell")
	f.Expect(planted).NotTo(BeAnExistingFile())
	f.Expect(f.mustTmux("capture-pane", "-p", "-t", "=other:")).NotTo(ContainSubstring("hello"))
}

// Keys also reach the program if a user looks at the pane in copy mode, in which keys run commands of tmux.
func TestAdoptedSession_InputLeavesCopyMode(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent", "terminal")
	uid := f.adopt("agent")
	a := f.attachTo(uid, "ready")
	planted := filepath.Join(t.TempDir(), "planted")
	for _, table := range []string{"copy-mode", "copy-mode-vi"} {
		f.mustTmux("bind-key", "-T", table, "h", "run-shell", "touch "+planted)
	}
	f.mustTmux("copy-mode", "-t", "=agent:")
	f.Expect(f.Type(f.ctx, uid, runtime.Line("hello"))).To(Succeed())
	f.awaitText(uid, "got <hello>")
	f.mustTmux("copy-mode", "-t", "=agent:")
	a.typeKeys(f, "here\r")
	f.awaitText(uid, "got <here>")
	f.Expect(planted).NotTo(BeAnExistingFile())
}

// A client that attaches later sees the screen with its colors, the cursor and the modes of the terminal. So does a client after the window was resized.
func TestAttach_DrawsScreen(t *testing.T) {
	f := newFixture(t)
	script := `printf '\033[?1049h\033[2J\033[5;7Hplain \033[31mred\033[0m\033[?25l\033[?1002h\033[?1006h\033[9;3H'; exec sleep 1000`
	f.mustTmux("new-session", "-d", "-s", "agent", "-x", "80", "-y", "24", "--", "sh", "-c", script)
	uid := f.adopt("agent")
	f.awaitText(uid, "red")
	first, second := f.attachTo(uid, "red"), f.attachTo(uid, "red")
	for _, a := range []*attachment{first, second} {
		f.Expect(a.view.String()).To(And(HavePrefix("\x1b[?1049h"), ContainSubstring("\x1b[5;1H      plain \x1b[31mred"),
			ContainSubstring("\x1b[?25l"), ContainSubstring("\x1b[?1000l\x1b[?1003l\x1b[?1005l"), ContainSubstring("\x1b[?1002h\x1b[?1006h"), ContainSubstring("\x1b[9;3H")))
	}
	begin := len(first.view.String())
	second.resize <- runtime.Terminal{Columns: 60, Rows: 20}
	f.Eventually(func() string { return first.view.String()[begin:] }).WithTimeout(patience).Should(ContainSubstring("plain \x1b[31mred"))
	f.Expect(f.mustTmux("display-message", "-p", "-t", "=agent:", "#{window_width}x#{window_height}")).To(Equal("60x20"))
}

// tmux answers the queries of the program. The terminal of the client must not answer them again.
func TestAttach_RemovesTerminalQueries(t *testing.T) {
	f := newFixture(t)
	f.mustTmux("new-session", "-d", "-s", "agent", "--", "sh", "-c", `read x; printf 'a\033[6nb\033]11;?\007c\n'; exec sleep 1000`)
	uid := f.adopt("agent")
	a := f.attachTo(uid, "\x1b[2J")
	a.typeKeys(f, "\r")
	f.Eventually(a.view.String).WithTimeout(patience).Should(ContainSubstring("abc"))
}

// slowOutput blocks every write until it is released.
type slowOutput struct {
	clientOutput
	release chan struct{}
	blocked chan struct{}
}

func (s *slowOutput) Write(p []byte) (int, error) {
	select {
	case s.blocked <- struct{}{}:
	default:
	}
	<-s.release
	return s.clientOutput.Write(p)
}

// A client that does not read blocks neither the program nor other clients, and takes a bounded amount of memory. When it reads again, it sees the screen.
func TestAttach_SlowClientIsBounded(t *testing.T) {
	f := newFixture(t)
	f.mustTmux("new-session", "-d", "-s", "agent", "--", "sh", "-c", `read x; seq 1 400000; echo finished; exec sleep 1000`)
	uid := f.adopt("agent")
	slow := &slowOutput{release: make(chan struct{}), blocked: make(chan struct{}, 1)}
	in, keys := io.Pipe()
	ctx, detach := context.WithCancel(f.ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.Attach(ctx, uid, in, slow, nil) }()
	f.Eventually(slow.blocked).WithTimeout(patience).Should(Receive())
	other := f.attachTo(uid, "\x1b[2J")
	f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Keys: []runtime.Key{runtime.KeyEnter}})).To(Succeed())
	f.awaitText(uid, "finished")
	f.Eventually(other.view.String).WithTimeout(patience).Should(ContainSubstring("finished"))
	close(slow.release)
	f.Eventually(slow.String).WithTimeout(patience).Should(ContainSubstring("finished"))
	f.Expect(len(slow.String())).To(BeNumerically("<", 2*mostUnread), "the output that it missed was dropped")
	detach()
	f.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	f.Expect(keys.Close()).To(Succeed())
}

// An attachment ends when the program exits, after its last output.
func TestAttach_EndsWithProgram(t *testing.T) {
	f := newFixture(t)
	f.mustTmux("new-session", "-d", "-s", "agent", "--", "sh", "-c", "read x; echo last words")
	f.mustTmux("set-option", "-g", "remain-on-exit", "on")
	uid := f.adopt("agent")
	a := f.attachTo(uid, "\x1b[2J")
	a.typeKeys(f, "\r")
	f.Eventually(a.ended).WithTimeout(patience).Should(Receive(BeNil()))
	f.Expect(a.view.String()).To(ContainSubstring("last words"))
}

// The pane is checked before input is sent: the record of a session that has ended must not lead to another pane.
func TestAttach_RefusesAnotherPane(t *testing.T) {
	f := newFixture(t)
	f.newForeignSession("agent", "terminal")
	uid := f.adopt("agent")
	rec, err := f.read(uid)
	f.Expect(err).NotTo(HaveOccurred())
	for name, change := range map[string]func(*record){
		"pane":    func(r *record) { r.Pane.PID = os.Getpid() },
		"server":  func(r *record) { r.Server.PID = os.Getpid() },
		"session": func(r *record) { r.SessionID = "$99" },
		"socket":  func(r *record) { r.Socket = "absent" },
	} {
		other := *rec
		change(&other)
		in, keys := io.Pipe()
		err := f.attachAdopted(f.ctx, &other, in, io.Discard, nil)
		f.Expect(err).To(HaveOccurred(), fmt.Sprint(name))
		f.Expect(keys.Close()).To(Succeed())
	}
}
