// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestKeyScanner_FindsDetachKey(t *testing.T) {
	for name, test := range map[string]struct {
		key    string
		pieces []string
		pass   string
		detach bool
	}{
		"control character":              {pieces: []string{"ab\x1dc"}, pass: "ab", detach: true},
		"kitty":                          {pieces: []string{"ab\x1b[93;5uc"}, pass: "ab", detach: true},
		"kitty with Num Lock":            {pieces: []string{"\x1b[93;133u"}, detach: true},
		"kitty with Caps and Num Lock":   {pieces: []string{"\x1b[93;197u"}, detach: true},
		"kitty with the event":           {pieces: []string{"\x1b[93;5:1u"}, detach: true},
		"kitty with other layouts":       {pieces: []string{"\x1b[93:125:93;5u"}, detach: true},
		"kitty with the text of the key": {pieces: []string{"\x1b[93;5;93u"}, detach: true},
		"modifyOtherKeys":                {pieces: []string{"\x1b[27;5;93~"}, detach: true},
		"every byte alone":               {pieces: strings.Split("a\x1b[93;5u", ""), pass: "a", detach: true},
		"after a paste":                  {pieces: []string{"\x1b[200~a\x1db\x1b[201~\x1d"}, pass: "\x1b[200~a\x1db\x1b[201~", detach: true},
		"after a paste in pieces":        {pieces: []string{"\x1b[20", "0~a\x1db\x1b[2", "01~", "\x1d"}, pass: "\x1b[200~a\x1db\x1b[201~", detach: true},
		"another key":                    {key: "ctrl-q", pieces: []string{"\x1d\x1b[113;5u"}, pass: "\x1d", detach: true},
		"another key as a control":       {key: "Ctrl-Q", pieces: []string{"a\x11"}, pass: "a", detach: true},
		"inside a paste":                 {pieces: []string{"\x1b[200~a\x1db\x1b[93;5u"}, pass: "\x1b[200~a\x1db\x1b[93;5u"},
		"released":                       {pieces: []string{"\x1b[93;5:3u"}, pass: "\x1b[93;5:3u"},
		"with Alt":                       {pieces: []string{"\x1b[93;7u"}, pass: "\x1b[93;7u"},
		"without Ctrl":                   {pieces: []string{"\x1b[93u\x1b[93;1u"}, pass: "\x1b[93u\x1b[93;1u"},
		"arrow keys":                     {pieces: []string{"\x1b[A\x1bOA\x1b[1;5A"}, pass: "\x1b[A\x1bOA\x1b[1;5A"},
		"Alt and letters":                {pieces: []string{"\x1bx\x1b\x1b[B"}, pass: "\x1bx\x1b\x1b[B"},
		"an endless sequence":            {pieces: []string{"\x1b[" + strings.Repeat("9", 100), "\x1d"}, pass: "\x1b[" + strings.Repeat("9", 100), detach: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := keyScanner{key: detachKey{']'}}
			if test.key != "" {
				g.Expect(s.key.Set(test.key)).To(Succeed())
			}
			var passed []byte
			detached := false
			for _, piece := range test.pieces {
				g.Expect(detached).To(BeFalse())
				pass, detach := s.scan([]byte(piece))
				passed, detached = append(passed, pass...), detach
			}
			g.Expect(string(passed)).To(Equal(test.pass))
			g.Expect(detached).To(Equal(test.detach))
			g.Expect(s.held).To(BeEmpty())
		})
	}
}

func TestKeyScanner_HoldsBackNoKeyForLong(t *testing.T) {
	g := NewWithT(t)
	s := keyScanner{key: detachKey{']'}}
	pass, _ := s.scan([]byte("a"))
	g.Expect(pass).To(BeEquivalentTo("a"))
	g.Expect(s.patience()).To(BeZero())
	pass, _ = s.scan([]byte("\x1b"))
	g.Expect(pass).To(BeEmpty())
	g.Expect(s.patience()).To(Equal(50 * time.Millisecond))
	g.Expect(s.take()).To(BeEquivalentTo("\x1b"))
	_, _ = s.scan([]byte("\x1b[93"))
	g.Expect(s.patience()).To(Equal(time.Second))
}

func TestDetachKey_RefusesOtherKeys(t *testing.T) {
	for _, text := range []string{"", "]", "ctrl-", "ctrl-[", "ctrl-i", "ctrl-j", "ctrl-m", "ctrl-aa", "alt-x", "ctrl-1"} {
		NewWithT(t).Expect((&detachKey{}).Set(text)).To(MatchError(ContainSubstring("is not a detach key")), text)
	}
}
