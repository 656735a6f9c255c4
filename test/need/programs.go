// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package need skips tests whose requirements this machine does not meet, and records the reasons for the summary of `make test`.
//
// If the environment variable BERTH_REQUIRE_PROGRAMS is set, a test fails instead of being skipped because of a program that is not installed.
package need

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
)

const (
	// requireVariable makes a missing program a failure. .ci/run sets it after it has installed everything.
	requireVariable = "BERTH_REQUIRE_PROGRAMS"
	// recordVariable names the file to which skipped tests are appended, one line each: what is lacking (program or machine),
	// package, test and reason, separated by tabs.
	recordVariable = "BERTH_SKIPPED_TESTS"
	// systemPython is the Python whose modules are Debian packages. The first python3 in PATH may be another one, with other versions of the modules.
	systemPython = "/usr/bin/python3"
)

//go:embed debian.txt
var debian string

// packages returns the Debian package of each program.
func packages() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(debian) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] != "#" {
			all[fields[0]] = fields[1]
		}
	}
	return all
}

// T is a test: *testing.T, *testing.B or ginkgo.GinkgoT().
type T interface {
	Helper()
	Name() string
	Skip(args ...any)
	Fatal(args ...any)
}

// Programs skips the test if one of the programs is not installed. debian.txt lists the names.
func Programs(t T, names ...string) {
	t.Helper()
	for _, name := range names {
		if !Listed(name) {
			t.Fatal("test/need/debian.txt does not list the program " + name + "; add it")
		}
	}
	Available(t, Missing(names...))
}

// Python returns the path of the Python of the system, and skips the test if one of its modules is not installed.
func Python(t T, modules ...string) string {
	t.Helper()
	names := []string{systemPython}
	for _, module := range modules {
		names = append(names, "python3:"+module)
	}
	Programs(t, names...)
	return systemPython
}

// Listed reports whether debian.txt lists the program.
func Listed(name string) bool { return packages()[name] != "" }

// Missing returns an error that names the programs that are not installed and their Debian packages, or nil.
func Missing(names ...string) error {
	known := packages()
	var programs, debs []string
	for _, name := range names {
		if !installed(name) {
			programs, debs = append(programs, name), append(debs, known[name])
		}
	}
	if programs == nil {
		return nil
	}
	return fmt.Errorf("not installed: %s (apt-get install %s)", strings.Join(programs, ", "), strings.Join(slices.Compact(debs), " "))
}

func installed(name string) bool {
	if module, found := strings.CutPrefix(name, "python3:"); found {
		return exec.Command(systemPython, "-c", "import "+module).Run() == nil
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// Available skips the test if err is not nil. err states what this machine lacks and how to install it.
func Available(t T, err error) {
	t.Helper()
	if err != nil {
		Without(t, err)
		t.Skip(err)
	}
}

// Without records that a part of the test does not run because of err, which states what this machine lacks and how to install it.
func Without(t T, err error) {
	t.Helper()
	if os.Getenv(requireVariable) != "" {
		t.Fatal(fmt.Sprintf("%s is set: %v", requireVariable, err))
	}
	record(t, "program", err)
}

// Root skips the test if it does not run as root. purpose is what only root can do, such as "run programs as another user".
func Root(t T, purpose string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Machine(t, errors.New("only root can "+purpose))
	}
}

// Machine skips the test because of a property of this machine that no package changes, such as the lack of IPv6.
func Machine(t T, err error) {
	t.Helper()
	Note(t, err)
	t.Skip(err)
}

// Elsewhere skips the test because it needs a cluster or programs that a make target creates. That target runs the test, so the summary does not mention it.
func Elsewhere(t T, target string) {
	t.Helper()
	t.Skip(target + " runs this test")
}

// Note records that a part of the test does not run because of a property of this machine that no package changes.
func Note(t T, err error) {
	t.Helper()
	record(t, "machine", err)
}

// record appends a line to the file of skipped tests, if there is one. lacking is program, or machine for what no package provides.
func record(t T, lacking string, err error) {
	t.Helper()
	path := os.Getenv(recordVariable)
	if path == "" {
		return
	}
	file, openErr := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if openErr != nil {
		t.Fatal(fmt.Sprintf("%s: %v", recordVariable, openErr))
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	_, writeErr := fmt.Fprintf(file, "%s\t%s\t%s\t%s\n", lacking, testPackage(), strings.Join(strings.Fields(t.Name()), " "), reason)
	if err := errors.Join(writeErr, file.Close()); err != nil {
		t.Fatal(fmt.Sprintf("%s: %v", recordVariable, err))
	}
}

// testPackage returns the import path of the package whose tests run.
func testPackage() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return strings.TrimSuffix(info.Path, ".test")
}
