// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"regexp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/facts"
)

var (
	// shells wait for the next command, which does not count as a question.
	shells = []string{"ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "sh", "tcsh", "xonsh", "zsh"}
	// viewers show something until the user quits them.
	viewers = []string{"btop", "emacs", "htop", "less", "man", "more", "most", "nano", "nvim", "pager", "top", "vi", "view", "vim"}
	// relays forward keys to a program in another terminal, which Berth cannot inspect.
	relays = []string{"berth", "docker", "doas", "expect", "kubectl", "mosh-client", "nerdctl", "podman", "screen", "script", "ssh", "su", "sudo", "telnet"}

	// shellPrompt matches in the prompt of a shell, whether or not text was typed after it.
	shellPrompt = regexp.MustCompile(`[$#%>❯➜»λ]( |$)`)
	// promptEnd matches the end of a prompt at which a program expects a line or a key: a question mark, a colon or an angle bracket, optionally followed by
	// the default answer in brackets; or the name of a debugger in brackets.
	promptEnd = regexp.MustCompile(`[?:>›](\s*[\[(][^\[\]()]*[\])])?:?$|^\([A-Za-z][\w .-]*\)$|^In \[\d+\]:$|^\.\.\.$`)
	// surePrompt is for terminals whose reader is not known. It matches less than promptEnd, because a working program may also leave text such as
	// "Downloading:" before the cursor.
	surePrompt = regexp.MustCompile(`\?(\s*[\[(][^\[\]()]*[\])])?:?$|^[a-z ]{4,20}: \([^()]*\)$|\]:$|[a-z] \([a-z][^()]*\):$|^\((Pdb|ipdb|gdb|lldb|dlv)\)$|` +
		`^(>>>|\.\.\.|sqlite>|mysql>|What now>)$|(?i)\b(enter|type|choose|select|user ?name|login|token|pin)\b[^\n]*:$`)
)

// idles reports whether the program that reads the terminal asks nothing: a shell at its prompt, or a viewer.
func idles(i facts.Input, view View) bool {
	switch {
	case slices.Contains(viewers, i.Program):
		return true
	case !slices.Contains(shells, i.Program):
		return false
	case i.Canonical: // Canonical is also true while the builtin command read waits
		return shellPrompt.MatchString(view.Prompt)
	}
	// The line editor of the shell is active, except in a bash that does not poll, which runs the builtin command read -n.
	return i.Program != "bash" || i.Reader == facts.ReaderPoll
}

// asks returns the name of the question that the reader and the cursor of the terminal imply; empty if they imply none.
func asks(i facts.Input, view View) string {
	switch {
	case view.FullScreen:
		return ""
	case i.Canonical && !i.Echo && view.Prompt != "" && (i.Reader == facts.ReaderRead || strings.HasSuffix(view.Prompt, ":")):
		return "password"
	case expectsAnswer(i, view):
		return "prompt"
	}
	return ""
}

// expectsAnswer reports whether the program in the foreground waits for an answer to what the terminal shows before the cursor.
func expectsAnswer(i facts.Input, view View) bool {
	switch {
	case i.Canonical && i.Reader == facts.ReaderRead:
		return view.Prompt != "" || strings.HasSuffix(view.Above, "?") || strings.HasSuffix(view.Above, ":")
	case i == facts.Input{} || slices.Contains(relays, i.Program):
		return !view.Hidden && surePrompt.MatchString(view.Prompt)
	case i.Reader == facts.ReaderUnknown: // usually a program that computes
		return false
	}
	return !view.Hidden && promptEnd.MatchString(view.Prompt)
}
