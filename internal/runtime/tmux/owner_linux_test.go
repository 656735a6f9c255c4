// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

// nobody is the user that programs run as in these tests.
var nobody = &shim.User{Name: "nobody", UID: 65534, GID: 65534, Home: "/"}

// newOwnerFixture returns a fixture, whose directory of sockets and directory for programs the user nobody may use.
func newOwnerFixture(t *testing.T) (f *fixture, dir string) {
	t.Helper()
	need.Root(t, "run programs as another user")
	dir, err := os.MkdirTemp("", "berth-owner-") // the parent of t.TempDir is private
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // it is for two users
		t.Fatal(err)
	}
	t.Setenv(socketDirVariable, dir)
	f = newFixture(t)
	t.Cleanup(func() { _, _ = f.tmuxAs(nobody, "kill-server") })
	return f, dir
}

// reopenAs starts a new manager, which runs programs as the user.
func (f *fixture) reopenAs(user *shim.User) {
	f.Helper()
	f.close()
	f.runAs = user
	f.open()
}

// tmuxAs runs a tmux command as a user, on the server of that user.
func (f *fixture) tmuxAs(user *shim.User, args ...string) (string, error) {
	cmd := exec.CommandContext(f.ctx, "tmux", append([]string{"-u", "-L", f.socket, "-f", os.DevNull}, args...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), "TMUX=", "TMUX_PANE=", "HOME=/"), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user.Credential()}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// newSessionOf creates a session of the user nobody that runs a command.
func (f *fixture) newSessionOf(name string, command ...string) procstat.Process {
	f.Helper()
	// env prevents tmux from running a command of one word by the user's shell: nobody's login shell runs nothing.
	out, err := f.tmuxAs(nobody, append([]string{"new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", name, "--", "env"}, command...)...)
	f.Expect(err).NotTo(HaveOccurred(), out)
	p, err := procstat.Identify(number(out))
	f.Expect(err).NotTo(HaveOccurred())
	return p
}

// newPrivilegedCat creates a program that gets the rights of root, as sudo does.
func (f *fixture) newPrivilegedCat(dir string) string {
	f.Helper()
	from, err := exec.LookPath("cat") // need: a program of the base system
	f.Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(from)
	f.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, "privileged")
	f.Expect(os.WriteFile(path, text, 0o700)).To(Succeed()) //nolint:gosec // it is to be run
	f.Expect(os.Chmod(path, 0o755|os.ModeSetuid)).To(Succeed())
	return path
}

// A manager that runs programs as nobody neither finds nor adopts a session of root, and controls a session of nobody with the rights of nobody.
func TestRunAs_AdoptsOnlySessionsOfThatUser(t *testing.T) {
	f, _ := newOwnerFixture(t)
	f.reopenAs(nobody)
	theirs := f.newForeignSession("agent", "terminal") // of root
	config := sessionConfig{Session: "agent", Adopt: adoptRequired}
	uid := newUID()
	err := f.Start(f.ctx, f.process(uid, 1, config))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonNothingToAdopt))
	f.Expect(err).To(MatchError(ContainSubstring("of user nobody")))
	f.Expect(f.Check(f.ctx, f.process(uid, 1, config))).To(MatchError(ContainSubstring("of user nobody")))
	config.Adopt = adoptIfExists
	f.Expect(reasonOf(f.Start(f.ctx, f.process(uid, 1, config)))).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(f.Find(f.ctx, f.socket)).To(BeEmpty(), "the session of root is not listed")
	f.expectAlive(theirs)

	own := f.newSessionOf("agent", "sh")
	f.Expect(f.Find(f.ctx, f.socket)).To(ConsistOf(And(HaveField("Name", "agent"), HaveField("Unfit", ""))))
	uid = f.adopt("agent")
	f.Expect(identity(f.observe(uid))).To(Equal(own))
	f.Expect(f.Type(f.ctx, uid, runtime.Line("echo user $(id -u)"))).To(Succeed())
	f.awaitText(uid, "user 65534")
	f.Expect(f.AttachCommand(uid)).To(HavePrefix("sudo -u nobody "))

	in, keys := io.Pipe()
	view, ended := &clientOutput{}, make(chan error, 1)
	go func() { ended <- f.Attach(f.ctx, uid, in, view, nil) }()
	f.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("user 65534"))
	f.Expect(f.clientUsers()).To(ConsistOf("65534"), "the tmux client has the rights of nobody")
	_, err = io.WriteString(keys, "echo again $(id -u)\r")
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(view.String).WithTimeout(patience).Should(ContainSubstring("again 65534"))
	f.Expect(keys.Close()).To(Succeed())
	f.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))

	f.Expect(f.Stop(f.ctx, uid, 1)).To(Succeed()) // sh ignores the signal at its prompt
	f.killAndWait(uid)
	f.awaitExit(own)
	f.expectAlive(theirs)

	// The next incarnation runs as nobody, in a session that Berth creates.
	p := f.process(uid, 2, sessionConfig{Session: "agent-2", Adopt: adoptIfExists})
	p.Command = []string{"sh", "-c", "echo user $(id -u); exec sleep 1000"}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await(uid, 2, facts.Running)
	f.awaitText(uid, "user 65534")
	f.awaitWindow(uid)
	f.Expect(f.sessionNames()).To(ConsistOf("agent", "agent-2"))
}

// clientUsers returns the UIDs of the attached clients of the server of nobody.
func (f *fixture) clientUsers() []string {
	f.Helper()
	out, err := f.tmuxAs(nobody, "list-clients", "-F", "#{client_uid}")
	f.Expect(err).NotTo(HaveOccurred(), out)
	return strings.Fields(out)
}

// A session of nobody whose program has the rights of root is not adopted. Input is refused while a program with the rights of root reads it.
func TestRunAs_RefusesProgramsWithRightsOfOthers(t *testing.T) {
	f, dir := newOwnerFixture(t)
	privileged := f.newPrivilegedCat(dir)
	f.reopenAs(nobody)
	root := f.newSessionOf("root", privileged)
	f.Eventually(func() ([]uint32, error) { return procstat.Users(root) }).WithTimeout(patience).WithPolling(often).Should(ContainElement(BeEquivalentTo(0)))
	err := f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "root", Adopt: adoptRequired}))
	f.Expect(reasonOf(err)).To(Equal(v1alpha1.ReasonSessionTaken))
	f.Expect(err).To(MatchError(And(ContainSubstring("has the rights of user root"), ContainSubstring("runs programs as user nobody"))))
	f.Expect(f.Find(f.ctx, f.socket)).To(ConsistOf(HaveField("Unfit", ContainSubstring("has the rights of user root"))))

	f.newSessionOf("agent", "sh")
	uid := f.adopt("agent")
	in, keys := io.Pipe()
	view, ended := &clientOutput{}, make(chan error, 1)
	go func() { ended <- f.Attach(f.ctx, uid, in, view, nil) }()
	_, err = io.WriteString(keys, "echo begin; "+privileged+"\r")
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(func() error { return f.Type(f.ctx, uid, runtime.Keystrokes{Text: "secret"}) }).WithTimeout(patience).WithPolling(often).
		Should(MatchError(ContainSubstring("the program that reads the terminal belongs to another user")))
	_, err = io.WriteString(keys, "typed\r")
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(ended).WithTimeout(patience).Should(Receive(MatchError(ContainSubstring("the program that reads the terminal belongs to another user"))))
	f.Expect(f.Capture(f.ctx, uid)).To(HaveField("Text", Not(ContainSubstring("typed"))))
	f.Expect(f.observe(uid).Phase).To(Equal(facts.Running), "the object keeps its session")
	f.Expect(keys.Close()).To(Succeed())
	f.killAndWait(uid)
}

// With --run-as, a manager does not control sessions that an earlier manager adopted without another user. They can be released.
func TestRunAs_DoesNotControlWhatWasAdoptedBefore(t *testing.T) {
	f, _ := newOwnerFixture(t)
	theirs := f.newForeignSession("agent", "terminal")
	uid := f.adopt("agent")
	f.awaitText(uid, "ready")
	f.reopenAs(nobody)
	now := f.observe(uid)
	f.Expect(now.Phase).To(Equal(facts.Unknown))
	f.Expect(now.Message).To(And(ContainSubstring("the tmux server belongs to another user"), ContainSubstring("delete the object to release the session")))
	refused := MatchError(ContainSubstring("belongs to another user"))
	f.Expect(f.Type(f.ctx, uid, runtime.Line("hello"))).To(refused)
	f.Expect(f.Attach(f.ctx, uid, strings.NewReader("hello\r"), io.Discard, nil)).To(refused)
	_, err := f.Capture(f.ctx, uid)
	f.Expect(err).To(refused)
	f.Expect(f.Stop(f.ctx, uid, 1)).To(refused)
	f.Expect(f.Kill(f.ctx, uid, 1)).To(refused)
	_, err = f.Members(f.ctx, uid)
	f.Expect(err).To(refused)
	f.expectAlive(theirs)
	f.Expect(f.mustTmux("capture-pane", "-p", "-t", "=agent:")).NotTo(ContainSubstring("hello"))
	f.Expect(f.Release(f.ctx, uid)).To(Succeed())
	f.Expect(f.observeAll(uid)).To(BeEmpty())
	f.expectAlive(theirs)
}

// Without another user, a session whose program has the rights of another user is refused as well.
func TestAdopt_RefusesProgramOfAnotherUser(t *testing.T) {
	f, _ := newOwnerFixture(t)
	f.mustTmux("new-session", "-d", "-s", "agent", "--", "setpriv", "--reuid=65534", "--clear-groups", "sleep", "1000")
	f.Eventually(func() string {
		return reasonOf(f.Check(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "agent", Adopt: adoptRequired})))
	}).WithTimeout(patience).WithPolling(often).Should(Equal(v1alpha1.ReasonSessionTaken))
	found, err := f.Find(f.ctx, f.socket)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(found).To(ConsistOf(HaveField("Unfit", ContainSubstring("has the rights of user nobody"))))
	f.Expect(f.adopted(f.ctx)).To(BeEmpty())
}
