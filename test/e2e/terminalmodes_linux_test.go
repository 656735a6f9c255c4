// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// changedModes are sequences that change modes of a terminal, by kind of program. The last kind stops within a sequence.
var changedModes = map[string]string{
	"full screen": `\x1b[>3u\x1b[?1049h\x1b[>1u\x1b[>7u\x1b[>4;2m\x1b[?1;1000;1002;1003;1004;1006;2004;2026;2031;2048h\x1b[?12;25;7l\x1b=\x1b[5;10r\x1b[?6h` +
		`\x1b[6 q\x1b[1;31;44m\x1b]11;#102030\a\x1b]4;1;#ffffff\a`,
	"lines":      `\x1b[=5;1u\x1b[?2004;1004;45h\x1b[4h\x1b[20h\x1b(0\x0e\x1b[4:3m\x1b]8;;http://localhost/\alink\x1b]12;red\a\x1b[?5h\x1b[>4;1m`,
	"unfinished": `\x1b[?47h\x1b[=1;2u\x1b[?9h\x1b[?1015h\x1b)0\x1b[?66h\x1b]0;a title without an end`,
}

// modesProgram changes modes of its terminal again for each line that it reads, and exits after the line "end".
const modesProgram = `import sys, tty
sequences = %q.encode().decode("unicode_escape")
tty.setcbreak(0)
while True:
    sys.stdout.write("changed" + sequences)
    sys.stdout.flush()
    if sys.stdin.readline() == "end\n":
        sys.exit(3)
`

// A way out of berth attach. leave makes it end.
type wayOut struct {
	name  string
	leave func(w *attachment)
	code  int
}

var waysOut = []wayOut{
	{"detach", func(w *attachment) { w.typeText("\x1d") }, 0},
	{"the program ends", func(w *attachment) { w.typeText("end\n") }, 0},
	{"SIGTERM", func(w *attachment) { w.signal(syscall.SIGTERM) }, 130},
	{"SIGHUP", func(w *attachment) { w.signal(syscall.SIGHUP) }, 130},
}

// terminals are the terminals of the matrix: the variable TERM, and what was sent to the terminal before berth attach.
var terminals = map[string]struct{ kind, before string }{
	"xterm": {"xterm-256color", ""},
	"kitty": {"xterm-kitty", "\x1b[>1u"},
	"dumb":  {"dumb", ""},
}

// modesOf returns the modes of a terminal emulator after each text.
func modesOf(ctx context.Context, emulator string, texts ...string) []map[string]any {
	GinkgoHelper()
	encoded := make([][]byte, len(texts))
	for i, text := range texts {
		encoded[i] = []byte(text)
	}
	input, err := json.Marshal(encoded)
	Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(ctx, "node", "emulator.js")
	cmd.Dir, cmd.Stdin, cmd.Stderr = emulator, bytes.NewReader(input), GinkgoWriter
	output, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred())
	var modes []map[string]any
	Expect(json.Unmarshal(output, &modes)).To(Succeed())
	return modes
}

// modesCase is a berth attach whose terminal has other modes than before.
type modesCase struct {
	name   string
	window *attachment
	before string
}

func changeModes(ctx context.Context, name, sequences, terminal string) *modesCase {
	GinkgoHelper()
	s := instance("modes", "python3", "-c", fmt.Sprintf(modesProgram, sequences))
	s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
	s.create(ctx).waitUntilReady(ctx)
	Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(ContainSubstring("changed"))
	c := &modesCase{name: name, before: terminals[terminal].before}
	c.window = attachIn(terminals[terminal].kind, s, 24, 80)
	c.window.waitForText("changed")
	c.window.typeText("again\n")
	Eventually(func() int { return strings.Count(c.window.output.String(), "changed") }).Should(BeNumerically(">=", 2), name)
	Expect(c.echoes()).To(BeFalse(), name)
	return c
}

// echoes reports whether the terminal echoes its input and edits lines, as for a shell.
func (c *modesCase) echoes() bool {
	GinkgoHelper()
	raw, err := c.window.terminal.(*os.File).SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	var settings *unix.Termios
	var failed error
	Expect(raw.Control(func(fd uintptr) { settings, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })).To(Succeed())
	Expect(failed).NotTo(HaveOccurred())
	const lines = unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	return settings.Lflag&lines == lines && settings.Oflag&unix.OPOST != 0 && settings.Iflag&unix.ICRNL != 0
}

// check checks that the terminal has the modes that it had before.
func (c *modesCase) check(ctx context.Context, emulator string) {
	GinkgoHelper()
	whole := c.window.output.String()
	at := strings.LastIndex(whole, "changed") + len("changed")
	until := at + strings.LastIndexAny(whole[at:], "\x1b")/2 // within the sequences of the program
	modes := modesOf(ctx, emulator, c.before, whole[:until], whole[until:])
	Expect(modes[1]).NotTo(Equal(modes[0]), "%s: the program has changed modes", c.name)
	Expect(modes[2]).To(Equal(modes[0]), "%s: %q", c.name, whole)
	Expect(c.echoes()).To(BeTrue(), c.name)
}

var _ = Describe("berth attach leaves the modes of the terminal as they were", Serial, func() {
	It("in a terminal emulator", NodeTimeout(10*time.Minute), func(ctx context.Context) {
		emulator := installProject(ctx, "test/e2e/projects/emulator")
		for program, sequences := range changedModes {
			for terminal := range terminals {
				for _, way := range waysOut {
					c := changeModes(ctx, program+", "+terminal+", "+way.name, sequences, terminal)
					way.leave(c.window)
					c.window.waitForCode(ctx, way.code)
					c.check(ctx, emulator)
				}
			}
		}

		By("killing the manager")
		var cases []*modesCase
		for program, sequences := range changedModes {
			for terminal := range terminals {
				cases = append(cases, changeModes(ctx, program+", "+terminal+", "+noManager, sequences, terminal))
			}
		}
		suiteBerth.kill(ctx)
		for _, c := range cases {
			c.window.waitForCode(ctx, 1)
		}
		suiteBerth.up(ctx)
		for _, c := range cases {
			c.check(ctx, emulator)
		}
	})

	It("in tmux", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		need.Programs(GinkgoT(), "tmux")
		server := newTmuxServer("modes")
		for program := range changedModes {
			for _, way := range waysOut {
				leaveInTmux(ctx, server, program, way.name)
			}
		}
		leaveInTmux(ctx, server, "full screen", noManager)
		suiteBerth.up(ctx)
	})
})

const noManager = "no manager"

// leaveInTmux attaches in a session of tmux, leaves in one way, and checks that the terminal has the modes that it had before.
func leaveInTmux(ctx context.Context, server tmuxServer, program, way string) {
	GinkgoHelper()
	name := program + ", " + way
	By(name)
	tmux := func(args ...string) string {
		GinkgoHelper()
		text, err := server.run(args...)
		Expect(err).NotTo(HaveOccurred())
		return text
	}
	modes := func() string {
		GinkgoHelper()
		return tmux("display-message", "-p", "-t", "=attached:", "#{alternate_on} #{cursor_flag} #{insert_flag} #{keypad_cursor_flag} #{keypad_flag} "+
			"#{mouse_any_flag} #{mouse_sgr_flag} #{origin_flag} #{scroll_region_lower} #{scroll_region_upper} #{wrap_flag}")
	}
	s := instance("modes", "python3", "-c", fmt.Sprintf(modesProgram, changedModes[program]))
	s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
	s.create(ctx).waitUntilReady(ctx)
	dir := GinkgoT().TempDir()
	script := fmt.Sprintf("cd %s; while [ ! -e begin ]; do sleep 0.1; done; sh -c 'echo $$ > pid; exec %s attach %s'; echo left; exec cat", dir, suiteBerth.program(), s.path())
	tmux(append([]string{"new-session", "-d", "-x", "80", "-y", "24", "-s", "attached", "env"}, append(suiteBerth.environment(), "sh", "-c", script)...)...)
	before := modes()
	Expect(os.WriteFile(filepath.Join(dir, "begin"), nil, 0o600)).To(Succeed())
	Eventually(modes).ShouldNot(Equal(before), name)
	switch way {
	case "detach":
		tmux("send-keys", "-t", "=attached:", "C-]")
	case "the program ends":
		tmux("send-keys", "-t", "=attached:", "-l", "end")
		tmux("send-keys", "-t", "=attached:", "C-j")
	case noManager:
		suiteBerth.kill(ctx)
	default:
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		Expect(err).NotTo(HaveOccurred())
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		Expect(err).NotTo(HaveOccurred())
		Expect(syscall.Kill(pid, unix.SignalNum(way))).To(Succeed())
	}
	server.waitForText("attached", "left")
	Expect(modes()).To(Equal(before), name)
	tmux("kill-session", "-t", "=attached")
}
