// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// quietPeriod is how long a screen has to be unchanged before the spec relies on AwaitingInput. The controller decides after two seconds without a change.
const quietPeriod = 5 * time.Second

// animated is a Python program that asks beside a spinner, a clock and a cursor that are never still.
const animated = `
import itertools, select, sys, time, tty
tty.setcbreak(0)
sys.stdout.write('\x1b[2J\x1b[5;1HDo you want to proceed?\r\n ❯ 1. Yes\r\n   2. No\r\n')
for i in itertools.count():
    sys.stdout.write('\x1b[1;1H%s Reading 1 file\x1b[2;1H%s\x1b[9;1H\x1b[?25%s' % ('●○'[i % 2], time.strftime('%T'), 'hl'[i % 2]))
    sys.stdout.flush()
    if select.select([0], [], [], 0.3)[0]:
        break
`

// internal/terminal tests the decision with many recorded screens. This spec uses running programs.
var _ = Describe("AwaitingInput", func() {
	It("is True for programs that ask, and absent for others", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		asking := map[string][]string{
			"python-input":   {"python3", "-c", `input("What is your name? ")`},
			"python-plain":   {"python3", "-c", `input("Deploy where ")`},
			"python-getpass": {"python3", "-c", `import getpass; getpass.getpass("Token: ")`},
			"python-pdb":     {"python3", "-c", "breakpoint()"},
			"rm":             {"rm", "-i", "a"},
			"git-add":        {"git", "add", "-p"},
			"npm-init":       {"npm", "init"},
			"bash-read":      {"bash", "-c", `read -p "Version to release " version`},
			"bash-runs-rm":   {"bash", "--norc", "-i"},
			"animated":       {"python3", "-c", animated},
			"clock":          {"bash", "-c", `(while :; do printf '\0337\033[1;1H%s\0338' "$(date +%N)"; sleep 0.2; done) & printf '\n\n'; read -p "Deploy where " answer`},
		}
		silent := map[string][]string{
			"bash-prompt":   {"bash", "--norc", "-i"},
			"sleep":         {"sh", "-c", `printf "Is the server up? "; sleep 1000`},
			"tail":          {"tail", "-f", "log"},
			"python-server": {"python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"},
		}
		subjects := map[string]*testObject{}
		for _, programs := range []map[string][]string{asking, silent} {
			for name, command := range programs {
				s := instance("asks-"+name, command...)
				spec := s.GetProcessSpec()
				spec.Process.WorkingDir = workingTree(ctx)
				spec.Process.Env = []v1alpha1.EnvVar{{Name: "HOME", Value: spec.Process.WorkingDir}, {Name: "TERM", Value: "xterm-256color"}}
				subjects[name] = s.create(ctx)
			}
		}
		subjects["bash-runs-rm"].waitUntilReady(ctx)
		suiteBerth.run(ctx, "send", subjects["bash-runs-rm"].path(), "rm -i a")

		for name := range asking {
			By(name)
			subjects[name].waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, v1alpha1.ReasonAwaitingInput)
		}
		for name := range silent {
			By(name)
			s := subjects[name]
			Eventually(func(g Gomega) {
				g.Expect(s.read(ctx)).To(Succeed())
				active := s.object.(*v1alpha1.Instance).Status.LastActivityTime
				g.Expect(active).NotTo(BeNil())
				g.Expect(time.Since(active.Time)).To(BeNumerically(">", quietPeriod))
			}).WithTimeout(startTimeout).Should(Succeed())
			Expect(s.status().Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionAwaitingInput)), name)
		}

		By("answering")
		s := subjects["rm"]
		file := filepath.Join(s.GetProcessSpec().Process.WorkingDir, "a")
		suiteBerth.run(ctx, "send", s.path(), "y")
		Eventually(file).WithTimeout(startTimeout).ShouldNot(BeAnExistingFile())
	})
})

var _ = Describe("an Instance whose screen is never still", func() {
	It("sleeps after its idle timeout if only a mark and a clock move beside a question", NodeTimeout(2*time.Minute), func(ctx context.Context) {
		s := instance("animated", "python3", "-c", animated)
		s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](5)
		s.create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, v1alpha1.ReasonAwaitingInput)
		s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonIdle)
	})

	It("stays awake while it works", NodeTimeout(2*time.Minute), func(ctx context.Context) {
		s := instance("computes", "bash", "-c", `while :; do for c in '|' '/' '-'; do printf '\r%s Computing' "$c"; sleep 0.3; done; done`)
		s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](3)
		s.create(ctx).waitUntilReady(ctx)
		Consistently(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.condition(v1alpha1.ConditionReady).Reason).NotTo(Equal(v1alpha1.ReasonIdle))
		}).WithTimeout(10 * time.Second).Should(Succeed())
	})
})

// frameProgram fills its terminal with a frame and asks a question in the last line. It does so again when the size of the terminal changes.
const frameProgram = `import os, signal, sys, tty
def draw(*_):
    size = os.get_terminal_size()
    columns, lines = size.columns, size.lines
    out = "\x1b[2J"
    for y in range(1, lines):
        out += "\x1b[%d;1H|%s|" % (y, (" %dx%d " % (columns, lines)).center(columns - 2, "."))
    sys.stdout.write(out + "\x1b[%d;1HDo you want to proceed? [y/N] " % lines)
    sys.stdout.flush()
signal.signal(signal.SIGWINCH, draw)
tty.setcbreak(0)
draw()
while True:
    os.read(0, 100)
`

var _ = Describe("The screen of an Instance", func() {
	for name, runtime := range map[string]*v1alpha1.InstanceRuntime{"Host": nil, "Tmux": {Type: v1alpha1.RuntimeTmux}} {
		It("has the size of the client that owns it: "+name, NodeTimeout(5*time.Minute), func(ctx context.Context) {
			if runtime != nil {
				if err := need.Missing("tmux"); err != nil {
					need.Without(GinkgoT(), err)
					return
				}
			}
			s := instance("frame", "python3", "-c", frameProgram)
			s.object.(*v1alpha1.Instance).Spec.Runtime = runtime
			s.create(ctx).waitUntilReady(ctx)
			asks := func(lines int, size string) {
				GinkgoHelper()
				Eventually(func(g Gomega) {
					screen := strings.Split(strings.TrimSpace(suiteBerth.run(ctx, "logs", "--screen", s.path())), "\n")
					g.Expect(screen).To(HaveLen(lines))
					g.Expect(screen[0]).To(And(HavePrefix("|..."), ContainSubstring(" "+size+" "), HaveSuffix("...|")))
					g.Expect(screen[lines-1]).To(Equal("Do you want to proceed? [y/N]"))
					g.Expect(s.read(ctx)).To(Succeed())
					active := s.object.(*v1alpha1.Instance).Status.LastActivityTime
					g.Expect(active).NotTo(BeNil())
					g.Expect(time.Since(active.Time)).To(BeNumerically(">", quietPeriod))
				}).WithTimeout(startTimeout).Should(Succeed())
				Expect(s.status().Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.ConditionAwaitingInput), HaveField("Status", metav1.ConditionTrue))))
			}
			asks(40, "120x40")

			By("attaching a larger terminal, which the screen follows")
			large := attach(s, 58, 213)
			asks(58, "213x58")
			small := attach(s, 20, 70)
			asks(20, "70x20")

			By("detaching")
			small.typeText("\x1d")
			small.waitForExit(ctx)
			asks(58, "213x58")
			large.typeText("\x1d")
			large.waitForExit(ctx)
			if runtime == nil {
				asks(58, "213x58")
			} else {
				asks(40, "120x40") // the size of the window
			}
		})
	}
})

// workingTree returns a new Git repository with a changed file, and with an untracked file, log, that ends in a question.
func workingTree(ctx context.Context) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	git := func(args ...string) {
		GinkgoHelper()
		cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}
	Expect(os.WriteFile(filepath.Join(dir, "log"), []byte("Do you want to continue? [Y/n] "), 0o600)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(dir, "a"), []byte("one\n"), 0o600)).To(Succeed())
	git("init", "-q")
	git("add", "a")
	git("commit", "-qm", "first")
	Expect(os.WriteFile(filepath.Join(dir, "a"), []byte("two\n"), 0o600)).To(Succeed())
	return dir
}
