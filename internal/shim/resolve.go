// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/facts"
)

// Reasons of End.Failure. They equal the condition reasons of the API, which the shim does not import.
const (
	ReasonCommandNotFound   = "CommandNotFound"
	ReasonPermissionDenied  = "PermissionDenied"
	ReasonWorkingDirMissing = "WorkingDirMissing"
	ReasonStartFailed       = "StartFailed"
)

// refused are variables that change how every program is loaded. The API rejects them as well.
var refused = map[string]bool{
	"LD_PRELOAD": true, "LD_AUDIT": true, "LD_LIBRARY_PATH": true,
	"DYLD_INSERT_LIBRARIES": true, "DYLD_LIBRARY_PATH": true, "DYLD_FRAMEWORK_PATH": true,
}

// Refused reports whether a variable changes how every program is loaded and must therefore not be set.
func Refused(variable string) bool { return refused[variable] }

func failure(reason, format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// environment merges the inherited and the requested environment; later entries win. Only the requested environment may contain cluster credentials.
func (l *Launch) environment() ([]string, *facts.StartError) {
	values := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, known := values[name]; !known {
			order = append(order, name)
		}
		values[name] = value
	}
	for _, entry := range l.RunAs.Inherited(l.Inherited) {
		name, value, _ := strings.Cut(entry, "=")
		set(name, value)
	}
	if l.Record.Terminal {
		set("TERM", "xterm-256color")
	}
	for _, entry := range l.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.ContainsRune(entry, 0) {
			return nil, failure(ReasonStartFailed, "the environment has an entry that is not NAME=value; correct spec.process.env")
		}
		if refused[name] {
			return nil, failure(ReasonStartFailed, "the variable %s is not permitted, because it changes how every program is loaded; remove it from spec.process.env", name)
		}
		set(name, value)
	}
	if l.Record.Token != "" {
		set(MarkVariable, Mark(l.Record.Token))
	}
	env := make([]string, 0, len(order))
	for _, name := range order {
		env = append(env, name+"="+values[name])
	}
	return env, nil
}

// Program is the result of Resolve.
type Program struct {
	// File is the executable, Dir the working directory, Env the whole environment.
	File, Dir string
	Env       []string
}

// Resolve returns the program of a Launch. It returns a StartError if the environment is invalid, or if the program or the working directory does not exist or
// is not accessible to the user of the Launch.
func (l *Launch) Resolve() (found Program, failed *facts.StartError) {
	if err := l.RunAs.access(func() { found, failed = l.resolve() }); err != nil {
		return Program{}, failure(ReasonStartFailed, "%v", err)
	}
	return found, failed
}

func (l *Launch) resolve() (Program, *facts.StartError) {
	env, failed := l.environment()
	if failed != nil {
		return Program{}, failed
	}
	dir, failed := l.directory()
	if failed != nil {
		return Program{}, failed
	}
	if len(l.Command) == 0 {
		return Program{}, failure(ReasonCommandNotFound, "the command is empty; name a program in spec.process.command")
	}
	file, failed := l.program(l.Command[0], env, dir)
	return Program{File: file, Dir: dir, Env: env}, failed
}

func lookup(env []string, name string) string {
	for _, entry := range env {
		if n, value, ok := strings.Cut(entry, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// directory returns the working directory, or a failure if it does not exist or the user may not enter it.
func (l *Launch) directory() (string, *facts.StartError) {
	dir := l.Dir
	if dir == "" {
		dir = lookup(l.RunAs.Inherited(l.Inherited), "HOME") // not HOME of the spec, because no policy on directories checks that value
	}
	if dir == "" {
		dir = "/"
	}
	if !filepath.IsAbs(dir) {
		return "", failure(ReasonWorkingDirMissing, "the working directory %q is not absolute; give its full path", dir)
	}
	info, err := os.Stat(dir)
	switch {
	case os.IsPermission(err):
		return "", failure(ReasonPermissionDenied, "the working directory %s is not accessible to user %d; change its permissions or use another directory", dir, l.RunAs.id())
	case err != nil || !info.IsDir():
		return "", failure(ReasonWorkingDirMissing, "the working directory %s does not exist or is not a directory; create it or correct spec.process.workingDir", dir)
	case !mayExecute(dir):
		return "", failure(ReasonPermissionDenied, "the working directory %s is not accessible to user %d; change its permissions or use another directory", dir, l.RunAs.id())
	}
	return dir, nil
}

// program finds the file to execute, as execvp would in the working directory with the environment of the child.
func (l *Launch) program(command string, env []string, dir string) (string, *facts.StartError) {
	if command == "" {
		return "", failure(ReasonCommandNotFound, "the first word of the command is empty; name a program in spec.process.command")
	}
	if isShellCode(command) {
		if _, err := os.Stat(absolute(command, dir)); err != nil {
			return "", failure(ReasonCommandNotFound, "the program %q does not exist: it is shell syntax, and no shell runs the command; "+
				"set spec.process.workingDir and env, or write spec.process.command: %s", command, jsonList([]string{"sh", "-c", command}))
		}
	}
	if strings.Contains(command, "/") {
		return l.executable(absolute(command, dir), command)
	}
	var denied *facts.StartError
	path := lookup(env, "PATH")
	for _, entry := range filepath.SplitList(path) {
		if entry == "" {
			continue
		}
		candidate := filepath.Join(absolute(entry, dir), command)
		// A directory that is missing or that the user may not access is skipped.
		if info, err := os.Stat(candidate); err != nil || info.IsDir() {
			continue
		}
		file, failed := l.executable(candidate, command)
		if failed == nil {
			return file, nil
		}
		if denied == nil {
			denied = failed
		}
	}
	if denied != nil {
		return "", denied
	}
	if words := strings.Fields(command); len(words) > 1 {
		return "", failure(ReasonCommandNotFound, "the program %q does not exist: the name contains spaces, and no shell splits the command; "+
			"write each word as an item of spec.process.command: %s", command, jsonList(words))
	}
	if strings.Contains(command, "=") {
		return "", failure(ReasonCommandNotFound, "the program %q does not exist: no shell runs the command; set variables in spec.process.env, and name the program first", command)
	}
	if slices.Contains(shellWords, command) {
		return "", failure(ReasonCommandNotFound, "the program %q does not exist: it is a word of the shell, and no shell runs the command; "+
			`set the directory and variables in spec.process.workingDir and env, or use ["sh", "-c", "..."] as spec.process.command`, command)
	}
	return "", failure(ReasonCommandNotFound, "the program %q is in none of the directories of PATH (%s); install it, or give its full path in spec.process.command", command, path)
}

// isShellCode reports whether a command is several words that only a shell understands.
func isShellCode(command string) bool {
	words := strings.Fields(command)
	return len(words) > 1 && (strings.ContainsAny(command, "&|;<>`$*") || slices.Contains(shellWords, words[0]))
}

// shellWords are the builtins and keywords of shells with which beginners start a command.
var shellWords = []string{"alias", "cd", "eval", "exec", "export", "for", "if", "set", "source", "ulimit", "umask", "unset", "while"}

// jsonList formats words as a YAML or JSON list.
func jsonList(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func (l *Launch) executable(file, command string) (string, *facts.StartError) {
	info, err := os.Stat(file)
	switch {
	case os.IsPermission(err):
		return "", failure(ReasonPermissionDenied, "the program %s (of command %q) is not accessible to user %d; change the permissions of the directories on its path", file, command, l.RunAs.id())
	case err != nil:
		return "", failure(ReasonCommandNotFound, "the program %s (of command %q) does not exist; install it or correct spec.process.command", file, command)
	case info.IsDir():
		return "", failure(ReasonPermissionDenied, "%s (of command %q) is a directory, not a program; correct spec.process.command", file, command)
	case !mayExecute(file):
		return "", failure(ReasonPermissionDenied, "user %d may not execute the program %s; set its x bit (chmod +x) or correct spec.process.command", l.RunAs.id(), file)
	}
	return file, nil
}

func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
