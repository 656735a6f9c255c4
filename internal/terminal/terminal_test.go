// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/pattern"
)

func renderText(columns, rows int, pieces ...string) string {
	s := New(columns, rows)
	for _, piece := range pieces {
		_, _ = s.Write([]byte(piece))
	}
	return s.Text()
}

func TestScreen_RendersOutput(t *testing.T) {
	for name, tc := range map[string]struct{ output, want string }{
		"lines":                   {"one\r\ntwo\r\n", "one\ntwo"},
		"colors":                  {"\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mblue\x1b[m", "red blue"},
		"a title":                 {"\x1b]0;a title\aafter\x1b]8;;http://x\x1b\\link", "afterlink"},
		"carriage return":         {"10%\r90%", "90%"},
		"backspace":               {"abc\b\bX", "aXc"},
		"tab":                     {"a\tb", "a       b"},
		"wraps":                   {"0123456789abc", "0123456789\nabc"},
		"wraps only before more":  {"0123456789\r\nx", "0123456789\nx"},
		"scrolls":                 {"1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"},
		"erases a line":           {"secret\x1b[2K\x1b[1Gok", "ok"},
		"erases to the right":     {"abcdef\x1b[3D\x1b[K", "abc"},
		"erases to the left":      {"abcdef\x1b[3D\x1b[1K", "    ef"},
		"erases below":            {"a\r\nb\r\nc\x1b[2A\x1b[J", "a"},
		"erases all":              {"a\r\nb\x1b[2J\x1b[Hc", "c"},
		"erases above":            {"ab\r\ncd\x1b[1J\x1b[Hx", "x"},
		"moves":                   {"\x1b[2;3Hx\x1b[Ay\x1b[1;1Hz", "z  y\n  x"},
		"column and row":          {"\x1b[3d\x1b[5Gx", "\n\n    x"},
		"deletes characters":      {"abcdef\x1b[1G\x1b[2P", "cdef"},
		"inserts characters":      {"abc\x1b[1G\x1b[2@", "  abc"},
		"overwrites characters":   {"abcdef\x1b[1G\x1b[2X", "  cdef"},
		"inserts lines":           {"1\r\n2\r\n3\x1b[2H\x1b[L", "1\n\n2\n3"},
		"deletes lines":           {"1\r\n2\r\n3\x1b[1H\x1b[M", "2\n3"},
		"a region":                {"1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3H\n", "1\n3\n\n4"},
		"scrolls down at the top": {"1\r\n2\x1b[H\x1bMx", "x\n1\n2"},
		"saves the cursor":        {"ab\x1b7cd\x1b8X", "abXd"},
		"another screen":          {"main\x1b[?1049h\x1b[Hother", "other"},
		"back from another":       {"main\x1b[?1049h\x1b[Hother\x1b[?1049l!", "main!"},
		"repeats":                 {"a\x1b[3b", "aaaa"},
		"wide":                    {"日本x\b\bY", "日 Yx"},
		"wide marks":              {"✅！\r\x1b[4Cx", "✅！x"},
		"combining characters":    {"e\u0301\u0323x\x1b[1GY", "Yx"},
		"a marked last column":    {"123456789e\u0301x", "123456789e\u0301\nx"},
		"emoji of several":        {"👨\u200d👩\u200d👧x🇩🇪y\x1b[4Gx", "👨👩👧xx🇪y"},
		"marks moved":             {"e\u0301x\x1b[1G\x1b[@", " e\u0301x"},
		"invisible marks":         {"a\u200b\u202eb\U000e0041\U000e0100c\u00add", "abcd"},
		"backward tabs":           {"abc\x1b[3C\x1b[Zx", "xbc"},
		"own tab stops":           {"\x1b[3g\x1b[4G\x1bH\rab\tx\r\n\ty", "ab x\n   y"},
		"no tab stops":            {"\x1b[3g\ty", "         y"},
		"insert mode":             {"本\r\x1b[4hl\x1b[4lm", "lm"},
		"insert mode, no room":    {"0123456789\x1b[4G\x1b[4hx", "012x345678"},
		"no wrapping":             {"\x1b[?7l0123456789abc\x1b[?7h", "012345678c"},
		"origin mode":             {"\x1b[2;3r\x1b[?6hx\x1b[9;9Hy\x1b[?6l\x1b[Hz", "z\nx\n        y"},
		"up within a region":      {"1\r\n2\x1b[2;3r\x1b[3H\x1b[9Ax", "1\nx"},
		"down within a region":    {"\x1b[2;3r\x1b[9Bx", "\n\nx"},
		"an invalid region":       {"ab\x1b[3;3rx\x1b[4;2ry", "abxy"},
		"erases what was above":   {"abc\x1b[3Jx", "abcx"},
		"saves before a wrap":     {"0123456789\x1b[sx\x1b[uy", "012345678y\nx"},
		"repeats over a wrap":     {"0123456789\x1b[2b", "0123456789\n99"},
		"lines and boxes":         {"\x1b(0lqk\x1b(Bq\x1b)0\x0ex\x0fx", "┌─┐q│x"},
		"a soft reset":            {"a\x1b[4h\x1b[?7l\x1b(0\x1b[!p\rxq", "xq"},
		"saves with mode 1048":    {"ab\x1b[?1048hcd\x1b[?1048lX", "abXd"},
		"controls in a sequence":  {"ab\x1b[1\rCx", "ax"},
		"a canceled sequence":     {"a\x1b[1\x18C\x1b]0;t\x1ab", "aCb"},
		"a title of screen":       {"a\x1bkname\x1b\\b", "ab"},
		"a long character set":    {"a\x1b$(Bb\x1b\x1b[Cc", "ab c"},
		"unknown sequences":       {"\x1b[>1uA\x1b[?25lB\x1b(BC\x1b=D", "ABCD"},
		"invalid sequences":       {"\x1b[12\x18\n\rx\xff\xfe", "\nx\ufffd\ufffd"},
		"resets":                  {"abc\x1bcd", "d"},
	} {
		if got := renderText(10, 4, tc.output); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
		bytewise := strings.Split(tc.output, "")
		if !strings.Contains(tc.output, "\xff") && renderText(10, 4, bytewise...) != tc.want {
			t.Errorf("%s, one by one: got %q, want %q", name, renderText(10, 4, bytewise...), tc.want)
		}
	}
}

func renderView(columns, rows int, output []byte) View {
	s := New(columns, rows)
	_, _ = s.Write(output)
	return s.View()
}

func TestAsks_RecognizesQuestionsOfAgents(t *testing.T) {
	for dir, asks := range map[string]bool{"asks": true, "works": false} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txt"))
		if err != nil || len(files) < 8 {
			t.Fatalf("recorded screens in %s: %d, %v", dir, len(files), err)
		}
		for _, file := range files {
			output, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			shown := renderView(100, 30, output)
			if got := Asks(shown, facts.Input{}, Defaults()); (got != "") != asks {
				t.Errorf("%s: the question is %q, of\n%s", file, got, shown.Text)
			}
		}
	}
}

// ofAgent matches the names of the recordings of coding agents.
var ofAgent = regexp.MustCompile(`^(claude|codex|gemini|opencode)-`)

// recording is a recorded screen (testdata/README.md).
type recording struct {
	Asks   bool        `json:"asks"`
	Input  facts.Input `json:"input"`
	Frames []int       `json:"frames"`

	name   string
	output []byte
}

func recordings(t *testing.T) (all []recording) {
	files, err := filepath.Glob(filepath.Join("testdata", "programs", "*.rec"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, output, _ := bytes.Cut(content, []byte("\n"))
		r := recording{name: strings.TrimSuffix(filepath.Base(file), ".rec"), output: output}
		if err := json.Unmarshal(head, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, r)
	}
	return all
}

// moves reports whether the screen was recorded while it was not still.
func (r recording) moves() bool { return len(r.Frames) > 0 && r.Frames[0] != r.Frames[len(r.Frames)-1] }

// frame returns what the terminal showed at the beginning of a second, drawn from as much output as the controller reads.
func (r recording) frame(i int) View {
	const drawn = 64 << 10
	return renderView(120, 40, r.output[max(0, r.Frames[i]-drawn):r.Frames[i]])
}

// judge returns which question a recording shows: of the whole screen if it was still, else of the examinations of each second.
func (r recording) judge(input facts.Input) string {
	if !r.moves() {
		return Asks(renderView(120, 40, r.output), input, Defaults())
	}
	var motion Motion
	var names []string
	for i, length := range r.Frames {
		look := Look{View: r.frame(i), Input: input, Waits: i > 0 && names[i-1] != ""}
		look.Still = i > 1 && length == r.Frames[i-2]
		names = append(names, motion.Asks(look, Defaults()))
	}
	if r.Asks { // reported after two seconds, and until the end
		if slices.Contains(names[2:], "") {
			return ""
		}
		return names[2]
	}
	return strings.Join(slices.Compact(names), "")
}

// TestAsks_ClassifiesRecordedPrograms checks the decisions for recordings of real programs (testdata/README.md): Asks must recognize at least 95 % of the
// questions, also of those on screens that are never still, and all dialogs of coding agents, without a false alarm. For decisions without the report of the operating system, as for Pods, the
// test only prints the figures.
func TestAsks_ClassifiesRecordedPrograms(t *testing.T) {
	type figures struct{ all, found, patterns map[bool]int }
	still, moving := figures{map[bool]int{}, map[bool]int{}, map[bool]int{}}, figures{map[bool]int{}, map[bool]int{}, map[bool]int{}}
	for _, r := range recordings(t) {
		f := still
		if r.moves() {
			f = moving
		}
		f.all[r.Asks]++
		switch got := r.judge(r.Input); {
		case got != "" && !r.Asks:
			f.found[false]++
			t.Errorf("%s asks nothing and is taken for a question (%s), with %+v", r.name, got, r.Input)
		case got != "":
			f.found[true]++
		case r.Asks:
			if ofAgent.MatchString(r.name) {
				t.Errorf("%s is a dialog of an agent and is not recognized", r.name)
			}
			shown := renderView(120, 40, r.output)
			t.Logf("%s asks and is not recognized, with %+v and the prompt %q, of\n%s", r.name, r.Input, shown.Prompt, shown.Text)
		}
		if got := r.judge(facts.Input{}); got != "" {
			f.patterns[r.Asks]++
			if !r.Asks {
				t.Logf("%s asks nothing and is taken for a question (%s) without facts", r.name, got)
			}
		} else if r.Asks {
			t.Logf("%s is not recognized without facts", r.name)
		}
	}
	least := map[string][2]int{"still": {80, 80}, "moving": {10, 30}}
	for name, f := range map[string]figures{"still": still, "moving": moving} {
		recall := 100 * float64(f.found[true]) / float64(f.all[true])
		t.Logf("%s screens: questions recognized: %d of %d (%.1f %%); false alarms: %d of %d", name, f.found[true], f.all[true], recall, f.found[false], f.all[false])
		t.Logf("%s screens, without facts, as in Pods: %d of %d; false alarms: %d of %d", name, f.patterns[true], f.all[true], f.patterns[false], f.all[false])
		if f.all[true] < least[name][0] || f.all[false] < least[name][1] || recall < 95 || f.found[false] > 0 {
			t.Errorf("%s screens: at least %d that ask and that do not, 95 %% recognized and no false alarm are required", name, least[name])
		}
	}
}

func TestView_ReportsPromptAndScreenState(t *testing.T) {
	for name, tc := range map[string]struct {
		output string
		want   View
	}{
		"after a prompt":          {"a\r\nName: ", View{Text: "a\nName:", Prompt: "Name:"}},
		"after a line":            {"a\r\nName:\r\n", View{Text: "a\nName:", Above: "Name:"}},
		"within a line":           {"Name\b\b", View{Text: "Name"}},
		"above text":              {"a\r\nb\x1b[A", View{Text: "a\nb"}},
		"a full line":             {"0123456789", View{Text: "0123456789", Prompt: "0123456789"}},
		"several code points":     {"👨\u200d👩? e\u0301", View{Text: "👨👩? e\u0301", Prompt: "👨👩? e\u0301"}},
		"wide":                    {"日本? ", View{Text: "日本?", Prompt: "日本?"}},
		"hidden":                  {"a\x1b[?25l", View{Text: "a", Prompt: "a", Hidden: true}},
		"shown again":             {"a\x1b[?25l\x1b[?25h", View{Text: "a", Prompt: "a"}},
		"full screen":             {"\x1b[?1049h\x1b[Ha", View{Text: "a", Prompt: "a", FullScreen: true}},
		"back":                    {"a\x1b[?1049h\x1b[Hb\x1b[?1049l", View{Text: "a", Prompt: "a"}},
		"nothing":                 {"", View{}},
		"indented, on a new line": {"a\r\n  ", View{Text: "a"}},
	} {
		got := renderView(10, 4, []byte(tc.output))
		if got.x, got.y = 0, 0; got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestAsks_DecidesByScreenAndInput(t *testing.T) {
	const free = "Deploy where "
	read, poll := facts.Input{Reader: facts.ReaderRead, Program: "tool", Canonical: true, Echo: true}, facts.Input{Reader: facts.ReaderPoll, Program: "tool"}
	as := func(input facts.Input, program string) facts.Input { input.Program = program; return input }
	for name, tc := range map[string]struct {
		output string
		input  facts.Input
		want   string
	}{
		"a blocked read after any text":          {free, read, "prompt"},
		"a blocked read without text":            {"", read, ""},
		"a blocked read on a new line":           {"Reading standard input\r\n", read, ""},
		"a blocked read below a question":        {"Deploy now?\r\n", read, "prompt"},
		"a read without echo":                    {"PIN ", facts.Input{Reader: facts.ReaderRead, Program: "tool", Canonical: true}, "password"},
		"no echo, reader unknown":                {"Kennwort: ", facts.Input{Reader: facts.ReaderUnknown, Canonical: true}, "password"},
		"no echo at work":                        {"Compiling ", facts.Input{Reader: facts.ReaderUnknown, Canonical: true}, ""},
		"no program reads":                       {"Go on? [y/N] ", facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}, ""},
		"a line editor":                          {"Name: ", poll, "prompt"},
		"a line editor with a default":           {"version: (1.0.0) ", poll, "prompt"},
		"a debugger":                             {"(Pdb) ", poll, "prompt"},
		"keys are awaited at work":               {"frame 120 of 4000", poll, ""},
		"keys are awaited, the cursor is hidden": {"Which one:\x1b[?25l", poll, ""},
		"keys are awaited at a percentage":       {"Copying: 45%", poll, ""},
		"a full screen":                          {"\x1b[?1049h\x1b[HName: ", poll, ""},
		"a full screen with a known question":    {"\x1b[?1049h\x1b[HPress enter to continue", poll, "key"},
		"bash at its prompt":                     {"me@host:~$ ", as(poll, "bash"), ""},
		"bash at a prompt of its user":           {"what now? ", as(poll, "bash"), ""},
		"bash waits for a line":                  {free, as(read, "bash"), "prompt"},
		"bash waits for a key":                   {"Again (y/q): ", facts.Input{Reader: facts.ReaderRead, Program: "bash", Echo: true}, "prompt"},
		"sh at its prompt":                       {"# ", as(read, "sh"), ""},
		"sh with half a command":                 {"$ rm a", as(read, "sh"), ""},
		"sh waits for a line":                    {free, as(read, "sh"), "prompt"},
		"zsh at its prompt":                      {"~ ❯ ", facts.Input{Reader: facts.ReaderRead, Program: "zsh"}, ""},
		"a pager":                                {":", facts.Input{Reader: facts.ReaderRead, Program: "less"}, ""},
		"a remote shell":                         {"me@host ~> ", as(poll, "ssh"), ""},
		"a remote question":                      {"remove 'a'? ", as(poll, "ssh"), "prompt"},
		"a question without facts":               {"remove 'a'? ", facts.Input{}, "prompt"},
		"work without facts":                     {"Downloading: ", facts.Input{}, ""},
	} {
		if got := Asks(renderView(80, 24, []byte(tc.output)), tc.input, Defaults()); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestAsks_UsesPatternsOfSpec(t *testing.T) {
	questions := Of(pattern.Compile([]string{`mine>$`, `(`}))
	asks := func(text string) string {
		return Asks(View{Text: text, Prompt: text}, facts.Input{Reader: facts.ReaderNone}, questions)
	}
	if got := asks("mine>   \n\n"); got != "patterns[0]" {
		t.Errorf("a valid pattern is not used: %q", got)
	}
	if got := asks("mine> yes"); got != "" {
		t.Errorf("an answer is taken for a question: %q", got)
	}
	if got := asks("mine>\n" + strings.Repeat("x\n", lastLines)); got != "" {
		t.Errorf("text far above the end of the screen is matched: %q", got)
	}
}

// costlySequences contains short sequences that change a whole screen or write a large part of it.
var costlySequences = map[string]string{
	"resets": "\x1bc", "switches": "\x1b[?1049h\x1b[?1049l", "feeds": "\n", "feeds in a region": "\x1b[1;999r\x1b[999H\n", "scrolls": "\x1b[999S", "scrolls down": "\x1b[999T",
	"inserts lines": "\x1b[H\x1b[999L", "goes up": "\x1b[H\x1bM", "erases": "\x1b[2J", "erases below": "\x1b[H\x1b[J", "writes at the end": "\x1b[1000Gx\n",
	"repeats": "x\x1b[1000b", "repeats a wide one": "日\x1b[1000b", "inserts": "x\x1b[H\x1b[1000@", "text": "x", "unfinished": "\x1b]", "unfinished with controls": "\x1b[\n", "tabs": "\x1b[999I\x1b[999Z", "inserts text": "\x1b[4h\rx", "marks": "e\u0301\u0302",
	"marks of one character": "\u0301", "numbers": "\x1b[1;1;1;1;1;1;1;1H",
}

// TestScreen_LimitsMemoryOfSequences checks that 16 KiB of any sequence allocate no more than the two largest screens.
func TestScreen_LimitsMemoryOfSequences(t *testing.T) {
	for name, sequence := range costlySequences {
		for _, size := range [][2]int{{262, 1000}, {1, 1000}} {
			var before, after runtime.MemStats
			output := []byte(strings.Repeat(sequence, 16<<10/len(sequence)))
			runtime.ReadMemStats(&before)
			s := New(size[0], size[1])
			_, _ = s.Write(output)
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
				t.Errorf("%s on %v: %d bytes", name, size, allocated)
			}
			if len(s.Text()) > 4*mostCells {
				t.Errorf("%s on %v: a text of %d bytes", name, size, len(s.Text()))
			}
		}
	}
}

// TestScreen_LimitsCharacters checks that marks without end need neither memory nor time.
func TestScreen_LimitsCharacters(t *testing.T) {
	s := New(100, 50)
	for first := range 100 {
		for second := range 100 {
			_, _ = s.Write([]byte{'e'})
			_, _ = s.Write([]byte(string([]rune{rune(0x300 + first), rune(0x300 + second)})))
		}
	}
	_, _ = s.Write([]byte("x" + strings.Repeat("\u0301", 64<<10)))
	if n := len(s.clusters.texts); n != maxClusters {
		t.Errorf("%d different characters are kept", n)
	}
	text := s.Text()
	if want := 5000 * (1 + 2*2); len(text) > want || !strings.HasSuffix(text, "e\nx") {
		t.Errorf("the text has %d bytes, and ends in %q", len(text), text[len(text)-8:])
	}
	_, _ = s.Write([]byte("\x1bce\u0301"))
	if got := s.Text(); got != "e\u0301" {
		t.Errorf("after a reset: %q", got)
	}
}

func BenchmarkScreen(b *testing.B) {
	for name, sequence := range costlySequences {
		b.Run(name, func(b *testing.B) {
			output := []byte(strings.Repeat(sequence, 64<<10/len(sequence)))
			for b.Loop() {
				s := New(262, 1000)
				_, _ = s.Write(output)
				_ = s.Text()
			}
		})
	}
}

// FuzzScreen checks that any output leaves the size of the screen unchanged, and that the result does not depend on the division into writes.
func FuzzScreen(f *testing.F) {
	f.Add([]byte("\x1b[2;3Hx\x1b[9999999999L\x1b[3;2r\x1b[T\x1b[Pé日\x1b[?1049h\x1b[b"), 3, 2)
	for _, sequence := range costlySequences {
		f.Add([]byte(strings.Repeat("日本x"+sequence, 4)), 10, 4)
	}
	f.Add([]byte("\x1b[2;9r\x1b[?6h\x1b[4h\x1b[?7l日e\u0301\x1b7\x1b[!p\x1b(0q\x0e\x1b8\x1b[3g\x1bH\x1b[I\x1b[Z\x1b[1\x18"), 4, 3)
	f.Fuzz(func(t *testing.T, output []byte, columns, rows int) {
		s := New(min(columns, 50), min(rows, 50))
		half := len(output) / 2
		_, _ = s.Write(output[:half])
		_, _ = s.Write(output[half:])
		if lines := strings.Count(s.Text(), "\n") + 1; lines > s.rows {
			t.Errorf("%d lines on a screen of %d", lines, s.rows)
		}
		for _, l := range append(slices.Clone(s.lines), s.other...) {
			if len(l.cells) > s.columns {
				t.Errorf("a line of %d cells on a screen of %d", len(l.cells), s.columns)
			}
		}
		for cell := range slices.Values(s.clusters.texts) {
			if len(cell) > longestCluster || len(s.clusters.texts) > maxClusters {
				t.Errorf("a character of %d bytes, of %d", len(cell), len(s.clusters.texts))
			}
		}
		if s.x < 0 || s.x >= s.columns || s.y < 0 || s.y >= s.rows || len(s.rest) > longestSequence {
			t.Errorf("the cursor is at %d, %d; %d bytes are kept", s.x, s.y, len(s.rest))
		}
		if whole := New(min(columns, 50), min(rows, 50)); len(output) < longestSequence {
			_, _ = whole.Write(output)
			if whole.View() != s.View() {
				t.Errorf("written at once it shows %q, in two pieces %q", whole.Text(), s.Text())
			}
		}
		Asks(s.View(), facts.Input{}, Defaults())
		var motion Motion
		for range 2 {
			motion.Adds(Look{View: s.View()})
			motion.Asks(Look{View: s.View()}, Defaults())
		}
	})
}
