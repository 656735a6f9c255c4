// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pattern

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// attack compiles to 238,003 instructions, which need 54 MB to compile and 11 MB to keep.
var attack = `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`

// largest is a pattern in which every instruction is active at every character of a text without NUL.
const largest = `(?s)(?:.?){1000}\x00`

func TestCompile_RefusesTheAttackWithoutCompilingIt(t *testing.T) {
	patterns := slices.Repeat([]string{attack}, 16)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	set := Compile(patterns)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if took > time.Second {
		t.Errorf("it took %s", took)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
		t.Errorf("it allocated %d bytes", allocated)
	}
	err := set.Err("patterns")
	if err == nil || !strings.Contains(err.Error(), "patterns[0]") || !strings.Contains(err.Error(), fmt.Sprint(maxSize)) {
		t.Fatalf("the error does not name the pattern and the limit: %v", err)
	}
	if len(err.Error()) > 2048 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	if set.MatchEnd("\x00") != -1 {
		t.Error("a refused pattern matches")
	}
}

func TestCompile_CountsAllPatternsTogether(t *testing.T) {
	half := `(?s)(?:.?){500}\x00`
	set := Compile([]string{half, half, half, `a`})
	for i, refused := range []bool{false, false, true, true} {
		if (set.Errors[i] != nil) != refused || (set.Patterns[i] == nil) != refused {
			t.Errorf("pattern %d: %v", i, set.Errors[i])
		}
	}
	if set.MatchEnd("\x00") != 0 {
		t.Error("the patterns before the one that is too large are not used")
	}
}

func TestCompile_SkipsSyntaxErrors(t *testing.T) {
	set := Compile([]string{`(`, ``, `b$`, "\xff", strings.Repeat("a", maxLength+1)})
	err := set.Err("patterns")
	for _, part := range []string{`patterns[0]: "(" is not a regular expression (RE2): missing closing )`, "patterns[3]", "patterns[4]", "256 characters"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
	if got := set.MatchEnd("ab"); got != 2 {
		t.Errorf("pattern %d matches", got)
	}
	if err := Compile([]string{`a`, ``}).Err("patterns"); err != nil {
		t.Error(err)
	}
}

func TestCompile_BoundsCharacterClasses(t *testing.T) {
	set := Compile([]string{strings.Repeat(`\pL`, 85)})
	if err := set.Errors[0]; err == nil || !strings.Contains(err.Error(), "ranges") {
		t.Errorf("a pattern whose classes need 450 KB is compiled: %v", err)
	}
	if set := Compile([]string{`^[\pL\pN_-]+$`}); set.MatchEnd("日本-1") != 0 {
		t.Error(set.Errors[0])
	}
}

func TestCompileWhole_KeepsAnchors(t *testing.T) {
	for _, tc := range []struct {
		pattern, text string
		valid, match  bool
	}{
		{`)|.*(?:`, "anything", false, false},
		{`v1)|(?:.*`, "anything", false, false},
		{`\Qv1`, "v1", true, true},
		{`\Qv1`, "v1)", true, false},
		{`v[0-9]+`, "v12", true, true},
		{`v[0-9]+`, "v12 ", true, false},
		{`v[0-9]+`, "v12\n", true, false},
		{`v[0-9]+`, "av1", true, false},
		{`a|ab`, "ab", true, true},
		{`a*?`, "aa", true, true},
		{`(?m)^a$`, "b\na", true, false},
		{`(?m)^a$\n^b$`, "a\nb", true, true},
		{`x*`, "", true, true},
	} {
		p := CompileWhole([]string{tc.pattern}).Patterns[0]
		if (p != nil) != tc.valid {
			t.Errorf("%s: valid is %t", tc.pattern, p != nil)
		}
		if p != nil && p.Match(tc.text) != tc.match {
			t.Errorf("%s and %q: match is %t", tc.pattern, tc.text, !tc.match)
		}
	}
}

func TestMatchEnd_LimitsMatchedText(t *testing.T) {
	small := Compile([]string{`first`})
	if small.MatchEnd("first\n"+strings.Repeat("x", 20_000)) != 0 {
		t.Error("a small pattern is not matched with the whole screen")
	}
	large := Compile([]string{`(?s)\x00(?:.?){1000}`, `first`, `(?m)^x`, `last`}) // the first is cheap for a text without NUL
	if large.size > maxSize || large.Patterns[3] == nil {
		t.Fatal(large.Err("patterns"))
	}
	seen := large.MaxText()
	fill := strings.Repeat("─", seen)
	if large.MatchEnd("first\n"+fill) != -1 {
		t.Error("more text is matched than the limit allows")
	}
	if large.MatchEnd(fill+"last") != 3 {
		t.Error("the end of the text is not matched")
	}
	if large.MatchEnd(strings.Repeat("x", 40)+"\n"+strings.Repeat("─", seen-20)) != -1 {
		t.Error("a truncated line matches ^")
	}
}

// FuzzCompile checks two properties of any pattern: the compiled program has no more instructions than Compile calculated before compiling, and CompileWhole
// matches a text if and only if the pattern with the anchors \A and \z does.
func FuzzCompile(f *testing.F) {
	for _, pattern := range []string{attack, largest, `)|.*(?:`, `\Qa`, `(?i)(a|b*)*c{2,}d{0}e{3}`, `(?U)a+?(?s:.)|\pL[^a]`, `((a{100}){100}){100}`, `(?:a{0,5}){0,9}$^\b\B`} {
		f.Add(pattern, "some text\nab")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		set := Compile([]string{pattern, pattern})
		if set.size > maxSize || set.runes > maxRunes {
			t.Errorf("size %d, %d runes", set.size, set.runes)
		}
		set.MatchEnd(text)
		whole := CompileWhole([]string{pattern})
		p := whole.Patterns[0]
		if p == nil {
			return
		}
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if len(program.Inst) > p.size {
			t.Errorf("%q has %d instructions and was measured as %d", pattern, len(program.Inst), p.size)
		}
		if utf8.RuneCountInString(text) > whole.MaxText() || strings.Contains(pattern, `\Q`) {
			return
		}
		if want := regexp.MustCompile(`\A(?:` + pattern + `)\z`).MatchString(text); p.Match(text) != want {
			t.Errorf("%q and %q: %t with anchors", pattern, text, want)
		}
	})
}

// BenchmarkMatchEnd matches the largest patterns with the largest screen. It produces the figure in docs/security.md.
func BenchmarkMatchEnd(b *testing.B) {
	for name, bench := range map[string]struct{ pattern, text string }{
		"any":        {largest, "a"},
		"box":        {largest, "─"},
		"class":      {`(?:\pL?){510}\x00`, "日"},
		"stars":      {`(?s)(?:(?:.*)*){400}\x00`, "a"},
		"word":       {`(?s)(?:(?:\b|.)?){500}\x00`, "a "},
		"fold":       {`(?i)(?:s?){1000}\x00`, "ſ"},
		"a question": {`(?s)(?:a.{1,900})❯`, "a"},
	} {
		b.Run(name, func(b *testing.B) {
			set, text := Compile([]string{bench.pattern}), strings.Repeat(bench.text, 20*1000)
			if err := set.Err("patterns"); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				set.MatchEnd(text)
			}
			b.ReportMetric(float64(set.size), "instructions")
		})
	}
}

func BenchmarkMatchWhole(b *testing.B) {
	set := CompileWhole([]string{largest})
	text := strings.Repeat("a", set.MaxText())
	for b.Loop() {
		set.Patterns[0].Match(text)
	}
}
