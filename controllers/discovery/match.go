// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
)

// patternsOf returns the pattern of each source, in the order of the sources, with "" for a source that has none.
func patternsOf(sources []v1alpha1.DiscoverySource) []string {
	texts := make([]string, len(sources))
	for i := range sources {
		if tmux := sources[i].Tmux; tmux != nil {
			texts[i] = tmux.Pattern
		}
	}
	return texts
}

// tooMany reports whether all names of sessions and containers together are longer than the longest text that may be matched with the patterns.
func tooMany(found []runtime.Found, patterns *pattern.Set) bool {
	characters := 0
	for i := range found {
		characters += utf8.RuneCountInString(found[i].Name) + 1
	}
	return characters > patterns.MaxText()
}

// matcher returns a function that reports whether a session or container matches all criteria of a source. named is the pattern of the source; nil if
// it has none.
func matcher(source *v1alpha1.DiscoverySource, named *pattern.Pattern) func(*runtime.Found) bool {
	var wanted []func(*runtime.Found) bool
	if tmux := source.Tmux; tmux != nil {
		wanted = append(wanted, func(f *runtime.Found) bool {
			return strings.HasPrefix(f.Name, tmux.Prefix) && (named == nil || named.Match(f.Name))
		})
	}
	if docker := source.Docker; docker != nil {
		wanted = append(wanted, func(f *runtime.Found) bool {
			return (docker.Image == "" || globbed(docker.Image, f.Image)) && labelled(f.Labels, docker.MatchLabels)
		})
	}
	if len(source.Processes) > 0 {
		wanted = append(wanted, func(f *runtime.Found) bool { return slices.Contains(source.Processes, path.Base(program(f))) })
	}
	return func(f *runtime.Found) bool {
		return !slices.ContainsFunc(wanted, func(want func(*runtime.Found) bool) bool { return !want(f) })
	}
}

// globbed reports whether text matches glob, in which * matches any text and every other character matches itself.
func globbed(glob, text string) bool {
	parts := strings.Split(glob, "*")
	last := len(parts) - 1
	if last == 0 {
		return glob == text
	}
	rest, begins := strings.CutPrefix(text, parts[0])
	if !begins {
		return false
	}
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[last])
}

func labelled(labels map[string]string, wanted map[string]v1alpha1.LabelText) bool {
	for name, value := range wanted {
		if has, ok := labels[name]; !ok || has != string(value) {
			return false
		}
	}
	return true
}

// program returns the first word of the command.
func program(f *runtime.Found) string {
	if words := strings.Fields(f.Command); len(words) > 0 {
		return words[0]
	}
	return ""
}

const (
	// longestStem is the maximum length of the part of an object name that comes from the original name. The complete name has at most 63 characters.
	longestStem = 50
	// sumBytes is the number of bytes of the hash in an object name. The hash distinguishes candidates whose names result in the same stem.
	sumBytes = 5
)

// objectName returns the name of the Instance for a session or container. Every manager derives the same name for the same session or container, and a
// different name for every other one. A session or container that was removed and created again counts as a different one. A new tmux server numbers its
// sessions from the beginning, so a session is identified by its name and creation time, not by its number.
func objectName(t *candidate) string {
	identity := []string{string(t.kind), t.socket, t.Name, strconv.FormatInt(t.Created.Unix(), 10)}
	if t.kind == v1alpha1.RuntimeDocker {
		identity = []string{string(t.kind), t.ID}
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\x00")))
	return cmp.Or(printable.Name(t.Name, longestStem), "found") + "-" + hex.EncodeToString(sum[:sumBytes])
}
