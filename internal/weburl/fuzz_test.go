// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package weburl

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// FuzzScanner checks that any output yields only addresses that a browser accepts, and that the addresses do not depend on how the output is divided into
// writes.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{
		"  ➜  Local:   \x1b[36mhttp://localhost:\x1b[1m5173\x1b[22m/\x1b[39m\n",
		"Serving HTTP on :: port 8000 (http://[::]:8000/) ...\r\n",
		"http://[::1]:1/a(b))]. https on [x port 65536\nhttp://a..b:00080/%zz",
		"\x1b]8;;http://localhost:1/\x07x\x1b]8;;\x07\nhttp://localhost:99999999999/",
	} {
		f.Add([]byte(text), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var whole, pieces Scanner
		_, _ = whole.Write(text)
		for piece := range slices.Chunk(text, max(int(size), 1)) {
			_, _ = pieces.Write(piece)
		}
		found := whole.URLs()
		if !slices.Equal(found, pieces.URLs()) {
			t.Errorf("%v as a whole and %v in pieces of %d bytes", found, pieces.URLs(), size)
		}
		if len(found) > maxPorts+1 {
			t.Errorf("%d addresses are kept", len(found))
		}
		for _, u := range found {
			checkURL(t, u)
		}
	})
}

func checkURL(t *testing.T, u URL) {
	t.Helper()
	if u.Port < 1 || u.Port > 65535 || len(u.Path) > maxPath || strings.ContainsAny(u.String(), "?#\n\r\x1b ") {
		t.Errorf("%q must not be found", u.String())
	}
	parsed, err := url.Parse(u.String())
	if err != nil {
		if !strings.Contains(u.Path, "%") && !strings.Contains(u.Host, ":") {
			t.Errorf("%q cannot be parsed: %v", u.String(), err)
		}
		return
	}
	if parsed.Port() != strconv.Itoa(int(u.Port)) || parsed.Hostname() != u.Host || parsed.User != nil || parsed.Scheme != u.Scheme {
		t.Errorf("%q is read as scheme %q, host %q and port %q", u.String(), parsed.Scheme, parsed.Hostname(), parsed.Port())
	}
}
