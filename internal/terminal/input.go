// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/berth-dev/berth/internal/facts"
)

var (
	// shells are programs whose prompt does not count as a question: they wait for the next command.
	shells = []string{"ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "sh", "tcsh", "xonsh", "zsh"}
	// viewers are programs that display text or data until the user quits them.
	viewers = []string{"btop", "emacs", "htop", "less", "man", "more", "most", "nano", "nvim", "pager", "top", "vi", "view", "vim"}
	// relays are programs that forward keys to a program in another terminal, which Berth cannot inspect.
	relays = []string{"berth", "docker", "doas", "expect", "kubectl", "mosh-client", "nerdctl", "podman", "screen", "script", "ssh", "su", "sudo", "telnet"}

	// shellPrompt matches the character that ends the prompt of a shell, whether or not text was typed after the prompt.
	shellPrompt = lazily(`[$#%>❯➜»λ]( |$)`)
	// promptEnd matches a prompt at which a program expects a line or a key. Either the prompt ends with a question mark, a colon or an angle bracket,
	// optionally followed by the default answer in brackets, or it is one of these as a whole: the prompt of a debugger, such as "(gdb)"; the prompt of
	// IPython, such as "In [1]:"; or the continuation prompt "...".
	promptEnd = lazily(`[?:>›](\s*[\[(][^\[\]()]*[\])])?:?$|^\([A-Za-z][\w .-]*\)$|^In \[\d+\]:$|^\.\.\.$`)
	// surePrompt is used if Berth does not know which program reads the terminal. It matches less than promptEnd, because a working program may also leave text
	// such as "Downloading:" before the cursor.
	surePrompt = lazily(`\?(\s*[\[(][^\[\]()]*[\])])?:?$|^[a-z ]{4,20}: \([^()]*\)$|\]:$|[a-z] \([a-z][^()]*\):$|^\((Pdb|ipdb|gdb|lldb|dlv)\)$|` +
		`^(>>>|\.\.\.|sqlite>|mysql>|What now>)$|(?i)\b(enter|type|choose|select|user ?name|login|token|pin)\b[^\n]*:$`)
)

// lazily compiles an expression at its first use. Each process of Berth with a terminal contains this package, and most of them never use it.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// idles reports whether the program that reads the terminal asks nothing: a shell at its prompt, or a viewer.
func idles(i facts.Input, view View) bool {
	switch {
	case slices.Contains(viewers, i.Program):
		return true
	case !slices.Contains(shells, i.Program):
		return false
	case i.Canonical: // Canonical is also true while the builtin command read waits
		return shellPrompt().MatchString(view.Prompt)
	}
	// Without Canonical, the line editor of the shell is active. The exception is a bash that does not poll: it runs the builtin command read -n.
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
		return !view.Hidden && surePrompt().MatchString(view.Prompt)
	case i.Reader == facts.ReaderUnknown: // usually a program that is busy
		return false
	}
	return !view.Hidden && promptEnd().MatchString(view.Prompt)
}
