// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestReasons_MatchAPI(t *testing.T) {
	g := NewWithT(t)
	g.Expect(ReasonCommandNotFound).To(Equal(v1alpha1.ReasonCommandNotFound))
	g.Expect(ReasonPermissionDenied).To(Equal(v1alpha1.ReasonPermissionDenied))
	g.Expect(ReasonWorkingDirMissing).To(Equal(v1alpha1.ReasonWorkingDirMissing))
	g.Expect(ReasonStartFailed).To(Equal(v1alpha1.ReasonStartFailed))
}

// A program without a working directory starts in the home directory of the manager's user, whatever HOME the spec sets.
func TestResolve_IgnoresHomeOfSpecForWorkingDirectory(t *testing.T) {
	g := NewWithT(t)
	home, elsewhere := t.TempDir(), t.TempDir()
	launch := Launch{Command: []string{"/bin/sh"}, Inherited: []string{"HOME=" + home}, Env: []string{"HOME=" + elsewhere}}
	program, failed := launch.Resolve()
	g.Expect(failed).NotTo(HaveOccurred())
	g.Expect(program.Dir).To(Equal(home))
	g.Expect(program.Env).To(ContainElement("HOME="+elsewhere), "the program itself has the HOME of the spec")
}

func TestResolve_HintsAtACommandInOneString(t *testing.T) {
	g := NewWithT(t)
	launch := Launch{Command: []string{"npm run dev"}, Dir: t.TempDir(), Inherited: []string{"PATH=/usr/bin:/bin"}}
	_, failed := launch.Resolve()
	g.Expect(failed).To(HaveOccurred())
	g.Expect(failed.Reason).To(Equal(ReasonCommandNotFound))
	g.Expect(failed.Message).To(HaveSuffix(`write each word as an item of spec.process.command: ["npm", "run", "dev"]`))
}

func TestResolve_HintsAtWordsOfTheShell(t *testing.T) {
	for word, hint := range map[string]string{
		"cd web && npm start": `write spec.process.command: ["sh", "-c", "cd web && npm start"]`, "cd web": "it is shell syntax", "./run.sh > log": "it is shell syntax",
		"cd": "it is a word of the shell", "NODE_ENV=development": "set variables in spec.process.env", "vite": "is in none of the directories of PATH",
	} {
		t.Run(word, func(t *testing.T) {
			g := NewWithT(t)
			launch := Launch{Command: []string{word, "a"}, Dir: t.TempDir(), Inherited: []string{"PATH=/usr/bin:/bin"}}
			_, failed := launch.Resolve()
			g.Expect(failed).To(HaveOccurred())
			g.Expect(failed.Reason).To(Equal(ReasonCommandNotFound))
			g.Expect(failed.Message).To(ContainSubstring(hint))
		})
	}
}
