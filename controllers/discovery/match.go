// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/runtime"
)

// patternsOf returns the pattern of each source, in their order; empty where it has none.
func patternsOf(sources []v1alpha1.DiscoverySource) []string {
	texts := make([]string, len(sources))
	for i := range sources {
		if tmux := sources[i].Tmux; tmux != nil {
			texts[i] = tmux.Pattern
		}
	}
	return texts
}

// tooMany reports that the names of what was found are longer together than the patterns may be matched with.
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

// globbed says whether a text is as the glob says, in which * stands for any text and all else for itself.
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

// program is the first word of what runs.
func program(f *runtime.Found) string {
	if words := strings.Fields(f.Command); len(words) > 0 {
		return words[0]
	}
	return ""
}

const (
	// longestStem is how much of the name that people know goes into that of the object; with the rest it has at most 63 characters.
	longestStem = 50
	// sumBytes is how much of the sum tells two apart whose names become the same.
	sumBytes = 5
)

// objectName is what the Instance of a session or container is called: the same for whoever finds it, another one for every other.
// A session that was made anew is another one, as a container is; tmux counts its ids from the start with each server, so the time is taken.
func objectName(t *thing) string {
	identity := []string{string(t.kind), t.socket, t.Name, strconv.FormatInt(t.Created.Unix(), 10)}
	if t.kind == v1alpha1.RuntimeDocker {
		identity = []string{string(t.kind), t.ID}
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\x00")))
	return legal(t.Name) + "-" + hex.EncodeToString(sum[:sumBytes])
}

// legal makes the beginning of an object's name of any text.
func legal(text string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(text) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteRune(c)
		} else if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
		if b.Len() >= longestStem {
			break
		}
	}
	if stem := strings.TrimRight(b.String(), "-"); stem != "" {
		return stem
	}
	return "found"
}
