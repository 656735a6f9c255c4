// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package need

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// subject is a test that records how it ends.
type subject struct{ skipped, failed string }

func (s *subject) Helper()          {}
func (s *subject) Name() string     { return "TestSubject/with a\tname" }
func (s *subject) Skip(args ...any) { s.skipped = fmt.Sprint(args...) }
func (s *subject) Fatal(args ...any) {
	if s.failed == "" { // a real test ends at the first failure
		s.failed = fmt.Sprint(args...)
	}
}

// hide sets a PATH that contains only the given programs, and lists programs that no machine has.
func hide(t *testing.T, installed ...string) {
	t.Helper()
	dir, list := t.TempDir(), debian
	for _, name := range installed {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // it has to be executable
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	t.Setenv(recordVariable, "") // the file of the run that this test is part of
	debian = "# a comment\nno-such-a package-a\nno-such-b package-a\nno-such-c package-c\n/usr/bin/python3 python3\npython3:no_such_module python3-none\n/no/such/file package-f\n"
	t.Cleanup(func() { debian = list })
}

func TestMissing_NamesProgramsAndPackages(t *testing.T) {
	g := NewWithT(t)
	hide(t, "no-such-c")
	g.Expect(Missing()).To(Succeed())
	g.Expect(Missing("no-such-c")).To(Succeed())
	g.Expect(Missing("no-such-a", "no-such-b", "no-such-c")).To(MatchError("not installed: no-such-a, no-such-b (apt-get install package-a)"))
	g.Expect(Missing("python3:no_such_module")).To(MatchError("not installed: python3:no_such_module (apt-get install python3-none)"))
	g.Expect(Missing("/no/such/file")).To(MatchError(ContainSubstring("package-f")))
	g.Expect(Listed("no-such-a")).To(BeTrue())
	g.Expect(Listed("no-such-d")).To(BeFalse())
}

func TestPrograms_SkipsAndRecords(t *testing.T) {
	g := NewWithT(t)
	hide(t, "no-such-c")
	path := filepath.Join(t.TempDir(), "skipped")
	t.Setenv(recordVariable, path)
	t.Setenv(requireVariable, "")
	s := &subject{}
	Programs(s, "no-such-c")
	g.Expect(*s).To(BeZero())
	g.Expect(path).NotTo(BeAnExistingFile())

	Programs(s, "no-such-a")
	g.Expect(s.skipped).To(ContainSubstring("not installed: no-such-a"))
	Without(s, errors.New("one line\nanother line"))
	Elsewhere(s, "make other")
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	const who = "program\tgithub.com/berth-dev/berth/test/need\tTestSubject/with a name\t"
	g.Expect(string(text)).To(Equal(who + "not installed: no-such-a (apt-get install package-a)\n" + who + "one line\n"))
	g.Expect(s.failed).To(BeEmpty())
	Programs(s, "no-such-d")
	g.Expect(s.failed).To(Equal("test/need/debian.txt does not list the program no-such-d; add it"))
}

func TestPrograms_FailsIfProgramsAreRequired(t *testing.T) {
	g := NewWithT(t)
	hide(t)
	t.Setenv(requireVariable, "1")
	for name, need := range map[string]func(T){
		"a program":         func(s T) { Programs(s, "no-such-a") },
		"a module":          func(s T) { Python(s, "no_such_module") },
		"a part of a test":  func(s T) { Without(s, Missing("no-such-a")) },
		"an unusable thing": func(s T) { Available(s, errors.New("no engine")) },
	} {
		s := &subject{}
		need(s)
		g.Expect(s.failed).To(HavePrefix(requireVariable+" is set: "), name)
	}
	s := &subject{}
	Machine(s, errors.New("no IPv6"))
	g.Expect(*s).To(Equal(subject{skipped: "no IPv6"}), "no package provides IPv6")
}

// TestList_IsWellFormed checks each line, because a malformed line would make Missing report the program as unlisted.
func TestList_IsWellFormed(t *testing.T) {
	g := NewWithT(t)
	var names []string
	for line := range strings.Lines(debian) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		g.Expect(line).To(MatchRegexp(`^[-a-z0-9_:/]+ [-a-z0-9.]+\n$`))
		names = append(names, strings.Fields(line)[0])
	}
	g.Expect(slices.Compact(slices.Sorted(slices.Values(names)))).To(HaveLen(len(names)), "a program is listed twice")
	g.Expect(packages()).To(HaveLen(len(names)))
}

// TestTests_SkipThroughThisPackage searches all tests for skips that the summary of make test would not show, and for silent decisions by the presence of a program.
func TestTests_SkipThroughThisPackage(t *testing.T) {
	g := NewWithT(t)
	skips := regexp.MustCompile(`\bSkip(f|Now)?\(|exec\.LookPath\(|Getenv\("CI"\)`)
	root := filepath.Join("..", "..")
	var found []string
	for _, folder := range []string{"api", "cmd", "controllers", "hack", "internal", "samples", "test"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
			isTest := strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join(root, "test")) || strings.Contains(path, "dockertest")
			if err != nil || entry.IsDir() || !isTest || filepath.Ext(path) != ".go" || filepath.Base(filepath.Dir(path)) == "need" {
				return err
			}
			text, err := os.ReadFile(path)
			for i, line := range strings.Split(string(text), "\n") {
				if skips.MatchString(line) && !strings.Contains(line, "// need: ") {
					found = append(found, fmt.Sprintf("%s:%d: %s", path, i+1, strings.TrimSpace(line)))
				}
			}
			return err
		})).To(Succeed())
	}
	g.Expect(found).To(BeEmpty(), "call the functions of test/need instead")
}
