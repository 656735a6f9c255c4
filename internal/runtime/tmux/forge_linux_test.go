// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// forgedLine returns a line of the listing for a session that does not exist, with a program that is no child of tmux.
func forgedLine(session string) string {
	return fmt.Sprintf("$77:%s:1700000000:1700000000:1700000000:0:%%77:%d:0:::%d:/tmp/x::::sleep", session, os.Getpid(), os.Getpid())
}

// A program can choose its name, the titles of its terminal and, through tmux, the marks of its session. None of these can add a session to the listing.
func TestSessions_CannotBeForged(t *testing.T) {
	f := newFixture(t)
	// tmux reports the first word of the command line as the command of a pane, and exec -a sets that word.
	f.mustTmux("new-session", "-d", "-s", "agent", "--", "bash", "-c", `printf '\033]0;%s\007\033k%s\033\\' "$1" "$1"; exec -a "$1" sleep 1000`, "bash", "evil\n"+forgedLine("named")+"\n")
	f.mustTmux("new-session", "-d", "-s", "marked", "--", "sleep", "1000")
	f.mustTmux("set-option", "-t", "=marked:", markUID, "x\n"+forgedLine("by-mark")+"\n")
	f.mustTmux("new-session", "-d", "-s", "line\n"+forgedLine("by-name"), "--", "sleep", "1000")
	var all []Session
	f.Eventually(func(g Gomega) {
		var err error
		all, err = f.Sessions(f.ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).NotTo(BeEmpty())
		g.Expect(all[0].Command).To(HavePrefix("evil"), "once the program is executed")
	}).WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.Expect(all).To(HaveLen(3))
	f.Expect(all[0]).To(And(HaveField("ID", "$0"), HaveField("Name", "agent")))
	f.Expect(all[1]).To(And(HaveField("ID", "$1"), HaveField("Name", "marked")))
	f.Expect(all[1].UID).NotTo(BeEmpty(), "marked with a UID")
	for _, s := range all {
		f.Expect(s.PanePID).NotTo(BeEquivalentTo(os.Getpid()))
		f.Expect(s.Command).NotTo(ContainSubstring("\n"))
	}
	err := f.Start(f.ctx, f.process(newUID(), 1, sessionConfig{Session: "named", Adopt: adoptRequired}))
	f.Expect(err).To(HaveOccurred(), "there is no such session")
	found, err := f.Find(f.ctx, "")
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(found).To(HaveLen(3))
	f.mustTmux("kill-server")
}

func FuzzParseSessions(f *testing.F) {
	f.Add(forgedLine("a") + "\n" + forgedLine("b"))
	f.Add("$0:main:1700000000:1700000001:1700000002:1:%0:42:1:137:9:41:/tmp/tmux-0/default:uid:install:1:a:b")
	f.Add("$0:main:1700000000")
	f.Add(strings.Repeat(":", 40))
	f.Fuzz(func(t *testing.T, out string) {
		for _, s := range parseSessions(out) {
			if s.ID == "" || s.ID[0] != '$' || s.Name == "" || s.server.pid <= 0 || len(s.panes) == 0 {
				t.Errorf("implausible session %+v", s)
			}
			if strings.Contains(s.Name+s.Command+string(s.UID)+s.install, "\n") {
				t.Errorf("a field of %+v holds a line feed", s)
			}
			for _, p := range s.panes {
				if p.pid <= 0 || p.id == "" || p.id[0] != '%' {
					t.Errorf("implausible pane %+v", p)
				}
			}
		}
	})
}
