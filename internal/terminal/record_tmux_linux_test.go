// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/terminal"
	"github.com/berth-dev/berth/test/need"
)

// referee is a tmux server that draws recordings.
type referee struct {
	*testing.T
	directory string
}

func (r referee) tmux(args ...string) string {
	cmd := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "TMUX_TMPDIR="+r.directory, "TMUX=", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// draw returns what tmux shows after output, and its cursor.
func (r referee) draw(name string, output []byte) (terminal.View, string) {
	const end = "\x1b\\\x1b]2;drawn\a" // the title shows that tmux has drawn everything
	file := filepath.Join(r.directory, name)
	if err := os.WriteFile(file, append(bytes.Clone(output), end...), 0o600); err != nil {
		r.Fatal(err)
	}
	session := strings.NewReplacer(".", "-", ":", "-").Replace(name)
	r.tmux("new-session", "-d", "-s", session, "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows), "stty raw -echo; cat '"+file+"'; exec sleep 60")
	for start := time.Now(); r.tmux("display-message", "-p", "-t", session, "#{pane_title}") != "drawn"; time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			r.Fatalf("tmux does not draw %s", name)
		}
	}
	state := strings.Fields(r.tmux("display-message", "-p", "-t", session, "#{cursor_x} #{cursor_y} #{cursor_flag} #{alternate_on}"))
	x, _ := strconv.Atoi(state[0])
	y, _ := strconv.Atoi(state[1])
	view := terminal.NewView(r.tmux("capture-pane", "-p", "-t", session), x, y, state[2] == "0", state[3] == "1")
	r.tmux("kill-session", "-t", session)
	return view, fmt.Sprintf("%d, %d", min(x, columns-1), y)
}

// TestScreen_DrawsRecordingsAsTmux compares what a Screen shows of each recording and of some sequences, and its cursor, with what tmux shows.
func TestScreen_DrawsRecordingsAsTmux(t *testing.T) {
	need.Programs(t, "tmux")
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.[rt][ex][ct]")) // not the compressed sessions
	if err != nil || len(files) < 100 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	r := referee{T: t, directory: t.TempDir()}
	r.tmux("new-session", "-d", "-s", "server", "sleep 600", ";", "set", "-g", "status", "off")
	t.Cleanup(func() { r.tmux("kill-server") })
	for _, file := range files {
		output, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) == ".rec" {
			_, output, _ = bytes.Cut(output, []byte("\n"))
		}
		r.compare(filepath.Base(file), output)
	}
	full := strings.Repeat("1234567890", columns/10)
	for i, output := range []string{
		"e\u0301x", "👨\u200d👩\u200d👧x🇩🇪y👍🏽z", full + "\u0301x", "a\u00adb", "abc\x1b[3C\x1b[Zx", "a\tb\tc\x1b[2Zx", "\x1b[5Gx\x1bH\r\tY", "\x1b[3g\r\tY", "本\r\x1b[4hl\x1b[4lm",
		"\x1b[?7l" + full + "abc", "\x1b[?6h\x1b[2;4r\x1b[1;1Hx\x1b[9;9Hy", "a\r\nb\r\nc\x1b[2;4r\x1b[3;1H\x1b[5Ax", "\x1b[2;4r\x1b[3H\x1b[99Bx", "\x1b[2;4r\x1b[6;1H\x1b[9Ax",
		"a\r\nb\x1b[5;2rx", "ab\x1b[3;3rx", "abc\x1b[3Jx", full + "\x1b[sx\x1b[uy", "ab\x1b[1\rCx", "ab\x1b[\bCx", "a\x1b]0;t\x18x", "a\x1bkname\x1b\\b", "a\x1b$(Bb\x1b\x1b[Cc",
	} {
		r.compare(fmt.Sprintf("sequence-%d", i), []byte(output))
	}
}

// compare compares a Screen with tmux.
func (r referee) compare(name string, output []byte) {
	s := terminal.New(columns, rows)
	_, _ = s.Write(output)
	x, y := s.Cursor()
	want, at := r.draw(name, output)
	if got := s.View(); got.Text != want.Text || got.FullScreen != want.FullScreen || got.Hidden != want.Hidden {
		r.Errorf("%s: the screen shows %+v\ntmux shows %+v", name, got, want)
	}
	if cursor := fmt.Sprintf("%d, %d", x, y); cursor != at {
		r.Errorf("%s: the cursor is at %s, in tmux at %s", name, cursor, at)
	}
}
