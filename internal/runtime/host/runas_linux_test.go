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
)

// asNobody reopens the manager of a bench so that its programs run as the user nobody.
func (b *bench) asNobody() *shim.User {
	t := b.T
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	as := &shim.User{Name: "nobody", UID: uint32(uid), GID: uint32(uid), Groups: []uint32{uint32(uid)}, Home: "/"}
	b.options.RunAs, b.options.ResultsDir = as, b.results()
	b.reopen()
	return as
}

// results creates a directory of results that other users may enter; t.TempDir does not permit that.
func (b *bench) results() string {
	b.Helper()
	results, err := os.MkdirTemp("", "berth-results-")
	b.Expect(err).NotTo(HaveOccurred())
	b.Cleanup(func() { _ = os.RemoveAll(results) })
	b.Expect(os.Chmod(results, 0o711)).To(Succeed())
	return results
}

// output runs a program that succeeds, and returns its output.
func (b *bench) output(p runtime.Process) string {
	b.Helper()
	b.Expect(b.Start(b.ctx, p)).To(Succeed())
	ended := b.await(p.UID, facts.Exited)
	output, err := os.ReadFile(filepath.Join(b.dir(p.UID), shim.LogFile))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(ended.Exit.Code).To(BeZero(), string(output))
	return string(output)
}

// With RunAs a program has the rights of that user only: it cannot read the records of the manager, signal its shim, or see the variables of the manager.
func TestRunAsTakesTheRightsOfTheManagerAway(t *testing.T) {
	t.Setenv("SECRET_OF_MANAGER", "not for programs")
	forTiers(t, func(b *bench) {
		as := b.asNobody()
		script := fmt.Sprintf(`id -u; id -G; echo "home $HOME user $USER secret ${SECRET_OF_MANAGER-none}"
cat %[1]s/manager.lock >/dev/null 2>&1 && echo "reads the state directory"
kill -STOP $PPID 2>/dev/null && echo "stops its shim"
cat /proc/$PPID/environ >/dev/null 2>&1 && echo "reads its shim"
cat %[2]s >/dev/null 2>&1 && echo "reads other files of root"
echo again >>/dev/stdout
echo done`, b.options.StateDir, b.secret())
		out := b.output(runtime.Process{UID: "rights", Incarnation: 1, Name: "rights", Command: []string{"/bin/sh", "-c", script}, Dir: "/"})
		b.Expect(out).To(Equal(fmt.Sprintf("%[1]d\n%[1]d\nhome / user nobody secret none\nagain\ndone\n", as.UID)))

		out = b.output(runtime.Process{UID: "terminal", Incarnation: 1, Name: "terminal", Dir: "/",
			Command: []string{"/bin/sh", "-c", `echo hello >"$(tty)"`}, Terminal: &runtime.Terminal{Columns: 80, Rows: 24}})
		b.Expect(strings.TrimSpace(out)).To(Equal("hello"), "the terminal can be opened by its name")

		out = b.output(runtime.Process{UID: "part", Incarnation: 1, Name: "part of Berth", Command: []string{"/usr/bin/id", "-u"}, Dir: "/", AsManager: true})
		b.Expect(out).To(Equal("0\n"))
	})
}

// secret makes a file that only root may read, in a directory that everyone may enter.
func (b *bench) secret() string {
	path := filepath.Join(b.options.ResultsDir, "secret")
	b.Expect(os.WriteFile(path, []byte("secret"), 0o600)).To(Succeed())
	return path
}

// A command beside the process, such as an exec probe, runs as the same user.
func TestRunAsHoldsForCommands(t *testing.T) {
	forTiers(t, func(b *bench) {
		as := b.asNobody()
		p := runtime.Process{UID: "probed", Incarnation: 1, Name: "probed", Command: []string{"/bin/sleep", "1000"}, Dir: "/"}
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		b.await(p.UID, facts.Running)
		p.Command = []string{"/bin/sh", "-c", fmt.Sprintf("[ $(id -u) = %d ]", as.UID)}
		exit, err := b.Exec(b.ctx, p)
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(exit.Code).To(BeZero())
	})
}

// Missing rights are detected before the fork, and the message names the user that lacks them.
func TestRunAsExplainsMissingRights(t *testing.T) {
	b := newBench(t, tiers(t)[0])
	as := b.asNobody()
	private := filepath.Join(b.options.ResultsDir, "private")
	b.Expect(os.Mkdir(private, 0o700)).To(Succeed())
	program := filepath.Join(b.options.ResultsDir, "program")
	b.Expect(os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700)).To(Succeed())
	for uid, p := range map[types.UID]runtime.Process{
		"dir":  {Command: []string{"/bin/true"}, Dir: private},
		"file": {Command: []string{program}, Dir: "/"},
	} {
		p.UID, p.Name, p.Incarnation = uid, string(uid), 1
		b.Expect(b.Start(b.ctx, p)).To(Succeed())
		why := b.await(uid, facts.Failed).StartError
		b.Expect(why.Reason).To(Equal(shim.ReasonPermissionDenied))
		b.Expect(why.Message).To(ContainSubstring(fmt.Sprintf("user %d", as.UID)))
	}
}

// Results of another user are outside of the state directory, belong to that user, and cannot make the manager read or write another file.
func TestRunAsResults(t *testing.T) {
	b := newBench(t, tiers(t)[0])
	b.asNobody()
	run := func(uid types.UID, script string) runtime.Results {
		b.Helper()
		b.output(runtime.Process{UID: uid, Incarnation: 1, Name: string(uid), Command: []string{"/bin/sh", "-c", script}, Dir: "/",
			Env:     []string{"RESULT=" + b.Place(uid).File, "ARTIFACTS=" + b.Place(uid).Artifacts, "INPUTS=" + b.Place(uid).Inputs},
			Results: true, Inputs: map[string][]byte{"given.jsonl": []byte("input\n")}})
		return b.Results(uid)
	}
	found := run("good", `cat $INPUTS/given.jsonl >$RESULT && echo x >$ARTIFACTS/x`)
	b.Expect(found.Problem).To(BeEmpty())
	b.Expect(string(found.Head)).To(Equal("input\n"))
	b.Expect(found.Artifacts).To(BeTrue())
	b.Expect(b.Place("good").File).To(HavePrefix(b.options.ResultsDir))

	found = run("link", "ln -s "+b.secret()+" $RESULT")
	b.Expect(found.Problem).To(ContainSubstring("symbolic link"))
	run("hard", "true")
	b.Expect(os.Link(b.secret(), b.Place("hard").File)).To(Succeed(), "as on a system that permits such links")
	found = b.Results("hard")
	b.Expect(found.Problem).To(ContainSubstring("does not belong to the user"))
	b.Expect(found.Head).To(BeEmpty())

	// A manager without RunAs finds the directory of another user and removes it.
	place := b.Place("good")
	b.options.RunAs = nil
	b.reopen()
	b.Expect(b.Place("good")).To(Equal(place))
	b.Expect(b.Forget(b.ctx, "good")).To(Succeed())
	_, err := os.Lstat(filepath.Dir(place.File))
	b.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
	b.Expect(b.Place("good").File).To(HavePrefix(b.options.StateDir))
}
