// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"regexp"
	"slices"
	"strings"
)

// Input is how the programs in the foreground of a terminal read it, as the operating system reports. The zero value means that nothing is known.
type Input struct {
	// Reader is what the programs in the foreground wait for: one of the constants below.
	Reader string
	// Program is the name of the program that reads.
	Program string
	// Canonical and Echo are modes of the terminal: programs read whole lines, and typed characters are shown.
	Canonical, Echo bool
}

// Values of Input.Reader.
const (
	// ReaderUnknown means that it is not known whether a program reads the terminal.
	ReaderUnknown = ""
	// ReaderNone means that no program reads the terminal.
	ReaderNone = "None"
	// ReaderRead means that a program is blocked in a read of the terminal.
	ReaderRead = "Read"
	// ReaderPoll means that a program waits for the terminal and possibly for other descriptors, as line editors, user interfaces and servers do.
	ReaderPoll = "Poll"
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
func (i Input) idles(view View) bool {
	switch {
	case slices.Contains(viewers, i.Program):
		return true
	case !slices.Contains(shells, i.Program):
		return false
	case i.Canonical: // also true while the builtin command read waits
		return shellPrompt.MatchString(view.Prompt)
	}
	// The line editor of the shell is active, except in a bash that does not poll, which runs the builtin command read -n.
	return i.Program != "bash" || i.Reader == ReaderPoll
}

// asks returns the name of the question that the reader and the cursor of the terminal imply; empty if they imply none.
func (i Input) asks(view View) string {
	switch {
	case view.FullScreen:
		return ""
	case i.Canonical && !i.Echo && view.Prompt != "" && (i.Reader == ReaderRead || strings.HasSuffix(view.Prompt, ":")):
		return "password"
	case i.expectsAnswer(view):
		return "prompt"
	}
	return ""
}

// expectsAnswer reports whether the program in the foreground waits for an answer to what the terminal shows before the cursor.
func (i Input) expectsAnswer(view View) bool {
	switch {
	case i.Canonical && i.Reader == ReaderRead:
		return view.Prompt != "" || strings.HasSuffix(view.Above, "?") || strings.HasSuffix(view.Above, ":")
	case i == Input{} || slices.Contains(relays, i.Program):
		return !view.Hidden && surePrompt.MatchString(view.Prompt)
	case i.Reader == ReaderUnknown: // usually a program that computes
		return false
	}
	return !view.Hidden && promptEnd.MatchString(view.Prompt)
}
