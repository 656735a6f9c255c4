// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	columns, rows = 120, 40
	// kept is how many bytes of the end of the output are recorded: as many as the controller draws.
	kept = 64 << 10
	// still is how long a screen must not change before it counts as still, as in the controller.
	still = 2 * time.Second
	// filmed is how many frames of a moving screen are recorded.
	filmed = 6
	// patience bounds the wait for each text.
	patience = 90 * time.Second
	// root contains the working directories, and home the home directories, so that no recording names another directory of the machine.
	root, home = "/tmp/x", "/tmp/home"
)

// scene is one screen.
type scene struct {
	name string
	asks bool
	run  string // a shell command; the program replaces the shell
	// prepare is a shell script that runs before the program, in the same directory.
	prepare string
	// steps are texts to wait for, each with the keys to type when it is shown.
	steps []step
	// shows is a regular expression that the output must match after the last step.
	shows string
	// moving means that the screen is never still. It is recorded for a few seconds after its text is shown.
	moving bool
	// blind records the screen as for a shim that is not permitted to inspect the program.
	blind bool
}

type step struct{ shows, keys string }

// Recording is the first line of a file.
type Recording struct {
	Asks    bool        `json:"asks"`
	Command string      `json:"command"`
	Input   facts.Input `json:"input"`
	// Frames are the lengths of the output after each second of a screen that is never still. The last one is the length of the whole output.
	Frames []int `json:"frames,omitempty"`
}

// screenOutput collects the output of one program.
type screenOutput struct {
	mu    sync.Mutex
	all   []byte
	last  time.Time
	ended bool
	shows func(piece []byte) // is called with each piece, if it is set
}

func (t *screenOutput) read(master *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := master.Read(buf)
		t.mu.Lock()
		t.all, t.last, t.ended = append(t.all, buf[:n]...), time.Now(), err != nil
		t.mu.Unlock()
		if t.shows != nil {
			t.shows(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// wait waits until the output after an offset matches, and returns the length of the whole output at that time.
func (t *screenOutput) wait(from int, shows string) (int, error) {
	expression := regexp.MustCompile(shows)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		t.mu.Lock()
		found, n, ended := expression.Match(t.all[from:]), len(t.all), t.ended
		tail := t.all[max(0, n-600):]
		t.mu.Unlock()
		if found {
			return n, nil
		}
		if ended || time.Now().After(end) {
			return 0, fmt.Errorf("%q was not shown; ended: %v; the output ends in %q", shows, ended, tail)
		}
	}
}

func (t *screenOutput) settle() {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		t.mu.Lock()
		last := t.last
		t.mu.Unlock()
		if time.Since(last) > still {
			return
		}
	}
}

// film waits until the screen is still. For a screen that is never still, it returns the length of the output at the beginning of each of some seconds.
func (t *screenOutput) film(moving bool) (frames []int) {
	if !moving {
		t.settle()
		return nil
	}
	for i := range filmed {
		if i > 0 {
			time.Sleep(time.Second)
		}
		t.mu.Lock()
		frames = append(frames, len(t.all))
		t.mu.Unlock()
	}
	return frames
}

// stage prepares the directories of a scene and runs its program in a terminal. end kills all its processes.
func stage(s scene, model, tools string, prepared func(dir string) error, path ...string) (master *os.File, end func(), err error) {
	dir, house := filepath.Join(root, s.name), filepath.Join(home, s.name)
	for _, d := range []string{dir, house} {
		if err := os.RemoveAll(d); err != nil {
			return nil, nil, err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, nil, err
		}
	}
	search := strings.Join(append(path, filepath.Join(tools, "node_modules/.bin"), os.Getenv("PATH")), ":")
	env := []string{"PATH=" + search, "HOME=" + house, "TERM=xterm-256color", "LANG=C.UTF-8", "USER=root",
		"GOCACHE=" + filepath.Join(root, ".go-cache"), "GOFLAGS=-mod=mod", "GOPROXY=off", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A",
		"GIT_COMMITTER_EMAIL=a@example.com", "NO_UPDATE_NOTIFIER=1", "NODE_PATH=" + filepath.Join(tools, "node_modules"), "TOOLS=" + tools, "MODEL=" + model, "npm_config_update_notifier=false"}
	if s.prepare != "" {
		cmd := exec.Command("/bin/bash", "-ec", s.prepare)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("prepare: %w: %s", err, out)
		}
	}
	if prepared != nil {
		if err := prepared(dir); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command("/bin/bash", "-c", "exec "+s.run)
	cmd.Dir, cmd.Env = dir, env
	master, err = pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: rows})
	return master, func() {
		members, _ := shim.Tree{Ancestor: os.Getpid()}.Members()
		for _, p := range members {
			if session, err := unix.Getsid(p.PID); err == nil && session == cmd.Process.Pid {
				_ = unix.Kill(p.PID, unix.SIGKILL)
			}
		}
		_ = master.Close()
		_ = cmd.Wait()
	}, err
}

func record(s scene, model, tools, to string) error {
	master, end, err := stage(s, model, tools, nil)
	if err != nil {
		return err
	}
	defer end()
	t := &screenOutput{last: time.Now()}
	go t.read(master)
	from := 0
	for _, step := range s.steps {
		if from, err = t.wait(from, step.shows); err != nil {
			return err
		}
		if s.moving {
			time.Sleep(time.Second) // agents lose what is typed while they draw their first screen, and treat Enter right after a text as pasted
		} else {
			t.settle()
		}
		if _, err := master.WriteString(step.keys); err != nil {
			return err
		}
	}
	if _, err := t.wait(from, s.shows); err != nil {
		return err
	}
	frames := t.film(s.moving)
	members, err := shim.Tree{Ancestor: os.Getpid()}.Members()
	if err != nil {
		return err
	}
	input, err := shim.InspectInput(master, members)
	if err != nil {
		return err
	}
	if s.blind {
		input.Reader, input.Program = facts.ReaderUnknown, ""
	}
	t.mu.Lock()
	all := t.all
	if frames != nil {
		all = all[:frames[len(frames)-1]]
	}
	dropped := max(0, len(all)-kept)
	if frames != nil {
		dropped = max(0, frames[0]-kept)
	}
	output := bytes.Clone(all[dropped:])
	t.mu.Unlock()
	for i := range frames {
		frames[i] -= dropped
	}
	head, err := json.Marshal(Recording{Asks: s.asks, Command: s.run, Input: input, Frames: frames})
	if err != nil {
		return err
	}
	fmt.Printf("%-28s %s\n", s.name, head)
	return os.WriteFile(filepath.Join(to, s.name+".rec"), append(append(head, '\n'), output...), 0o644)
}

var (
	only  = flag.String("record", "", "record only the screens whose name matches this regular expression; without it, record none")
	tools = flag.String("tools", "/tmp/x-tools", "directory with node_modules")
	at    = flag.Int("at", 4, "number of programs to run at the same time")
)

// TestRecord checks that each screen of scenes is recorded. With the flag -record, it starts the real programs in terminals and records what they show and how
// they read the terminal, for TestAsks_ClassifiesRecordedPrograms: as root on Debian, with the packages and npm packages that testdata/README.md names. It
// writes one file for each screen: a line of JSON and the output.
func TestRecord(t *testing.T) {
	if *only == "" {
		for _, s := range scenes() {
			if _, err := os.Stat(filepath.Join("testdata", "programs", s.name+".rec")); err != nil {
				t.Errorf("%s is not recorded: %v; record it with -record=%s", s.name, err, s.name)
			}
		}
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	selected := regexp.MustCompile(*only)
	model := newRecordedModel(func(string) {}, false)
	defer model.Close()
	slots := make(chan struct{}, *at)
	var wait sync.WaitGroup
	for _, s := range scenes() {
		if !selected.MatchString(s.name) {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if err := record(s, model.URL, *tools, filepath.Join("testdata", "programs")); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	wait.Wait()
}
