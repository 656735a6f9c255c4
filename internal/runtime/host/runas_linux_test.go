// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

// runAsNobody reopens the manager of a fixture so that its programs run as the user nobody.
func (f *fixture) runAsNobody() *shim.User {
	t := f.T
	t.Helper()
	need.Root(t, "run programs as another user")
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	as := &shim.User{Name: "nobody", UID: uint32(uid), GID: uint32(uid), Groups: []uint32{uint32(uid)}, Home: "/"}
	f.options.RunAs, f.options.ResultsDir = as, f.newResultsDir()
	f.reopen()
	return as
}

// newResultsDir creates a directory of results that other users may enter; t.TempDir does not permit that.
func (f *fixture) newResultsDir() string {
	f.Helper()
	results, err := os.MkdirTemp("", "berth-results-")
	f.Expect(err).NotTo(HaveOccurred())
	f.Cleanup(func() { _ = os.RemoveAll(results) })
	f.Expect(os.Chmod(results, 0o711)).To(Succeed())
	return results
}

// runForOutput runs a program that succeeds, and returns its output.
func (f *fixture) runForOutput(p runtime.Process) string {
	f.Helper()
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	ended := f.await(p.UID, facts.Exited)
	output, err := os.ReadFile(filepath.Join(f.dir(p.UID), shim.LogFile))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(ended.Exit.Code).To(BeZero(), string(output))
	return string(output)
}

// With RunAs a program has the rights of that user only: it cannot read the records of the manager, signal its shim, or see the variables of the manager.
func TestRunAs_DropsRightsOfManager(t *testing.T) {
	t.Setenv("SECRET_OF_MANAGER", "not for programs")
	forEachTier(t, func(f *fixture) {
		as := f.runAsNobody()
		script := fmt.Sprintf(`id -u; id -G; echo "home $HOME user $USER secret ${SECRET_OF_MANAGER-none}"
cat %[1]s/manager.lock >/dev/null 2>&1 && echo "reads the state directory"
kill -STOP $PPID 2>/dev/null && echo "stops its shim"
cat /proc/$PPID/environ >/dev/null 2>&1 && echo "reads its shim"
cat %[2]s >/dev/null 2>&1 && echo "reads other files of root"
echo again >>/proc/self/fd/1
echo done`, f.options.StateDir, f.newRootOnlyFile())
		out := f.runForOutput(runtime.Process{UID: "rights", Incarnation: 1, Name: "rights", Command: []string{"/bin/sh", "-c", script}, Dir: "/"})
		f.Expect(out).To(Equal(fmt.Sprintf("%[1]d\n%[1]d\nhome / user nobody secret none\nagain\ndone\n", as.UID)))

		out = f.runForOutput(runtime.Process{UID: "terminal", Incarnation: 1, Name: "terminal", Dir: "/",
			Command: []string{"/bin/sh", "-c", `echo hello >"$(tty)"`}, Terminal: &runtime.Terminal{Columns: 80, Rows: 24}})
		f.Expect(strings.TrimSpace(out)).To(Equal("hello"), "the terminal can be opened by its name")

		out = f.runForOutput(runtime.Process{UID: "part", Incarnation: 1, Name: "part of Berth", Command: []string{"/usr/bin/id", "-u"}, Dir: "/", AsManager: true})
		f.Expect(out).To(Equal("0\n"))
	})
}

// newRootOnlyFile makes a file that only root may read, in a directory that everyone may enter.
func (f *fixture) newRootOnlyFile() string {
	path := filepath.Join(f.options.ResultsDir, "secret")
	f.Expect(os.WriteFile(path, []byte("secret"), 0o600)).To(Succeed())
	return path
}

// A command beside the process, such as an exec probe, runs as the same user.
func TestRunAs_AppliesToExecCommands(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		as := f.runAsNobody()
		p := runtime.Process{UID: "probed", Incarnation: 1, Name: "probed", Command: []string{"/bin/sleep", "1000"}, Dir: "/"}
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		f.await(p.UID, facts.Running)
		p.Command = []string{"/bin/sh", "-c", fmt.Sprintf("[ $(id -u) = %d ]", as.UID)}
		exit, err := f.Exec(f.ctx, p)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(exit.Code).To(BeZero())
	})
}

// Missing rights are detected before the fork, and the message names the user that lacks them.
func TestRunAs_ReportsMissingPermissions(t *testing.T) {
	f := newFixture(t, availableTiers(t)[0])
	as := f.runAsNobody()
	private := filepath.Join(f.options.ResultsDir, "private")
	f.Expect(os.Mkdir(private, 0o700)).To(Succeed())
	program := filepath.Join(f.options.ResultsDir, "program")
	f.Expect(os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700)).To(Succeed())
	for uid, p := range map[types.UID]runtime.Process{
		"dir":  {Command: []string{"/bin/true"}, Dir: private},
		"file": {Command: []string{program}, Dir: "/"},
	} {
		p.UID, p.Name, p.Incarnation = uid, string(uid), 1
		f.Expect(f.Start(f.ctx, p)).To(Succeed())
		why := f.await(uid, facts.Failed).StartError
		f.Expect(why.Reason).To(Equal(shim.ReasonPermissionDenied))
		f.Expect(why.Message).To(ContainSubstring(fmt.Sprintf("user %d", as.UID)))
	}
}

// Results of a program that runs as another user are outside of the state directory, belong to that user, and cannot make the manager read or write another
// file.
func TestRunAs_IsolatesResults(t *testing.T) {
	f := newFixture(t, availableTiers(t)[0])
	f.runAsNobody()
	run := func(uid types.UID, script string) runtime.Results {
		f.Helper()
		f.runForOutput(runtime.Process{UID: uid, Incarnation: 1, Name: string(uid), Command: []string{"/bin/sh", "-c", script}, Dir: "/",
			Env:     []string{"RESULT=" + f.Place(uid).File, "ARTIFACTS=" + f.Place(uid).Artifacts, "INPUTS=" + f.Place(uid).Inputs},
			Results: true, Inputs: map[string][]byte{"given.jsonl": []byte("input\n")}})
		return f.Results(uid)
	}
	found := run("good", `cat $INPUTS/given.jsonl >$RESULT && echo x >$ARTIFACTS/x`)
	f.Expect(found.Problem).To(BeEmpty())
	f.Expect(string(found.Head)).To(Equal("input\n"))
	f.Expect(found.Artifacts).To(BeTrue())
	f.Expect(f.Place("good").File).To(HavePrefix(f.options.ResultsDir))

	found = run("link", "ln -s "+f.newRootOnlyFile()+" $RESULT")
	f.Expect(found.Problem).To(ContainSubstring("symbolic link"))
	run("hard", "true")
	f.Expect(os.Link(f.newRootOnlyFile(), f.Place("hard").File)).To(Succeed(), "as on a system that permits such links")
	found = f.Results("hard")
	f.Expect(found.Problem).To(ContainSubstring("does not belong to the user"))
	f.Expect(found.Head).To(BeEmpty())

	// A manager without RunAs finds the directory of another user and removes it.
	place := f.Place("good")
	f.options.RunAs = nil
	f.reopen()
	f.Expect(f.Place("good").File).To(HavePrefix(f.options.StateDir), "where the next start puts the results")
	f.Expect(f.Results("good")).To(And(HaveField("Paths", place), HaveField("Head", []byte("input\n"))), "where the results are")
	f.Expect(f.Forget(f.ctx, "good")).To(Succeed())
	_, err := os.Lstat(filepath.Dir(place.File))
	f.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
}
