// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package weburl finds the addresses that servers print.
//
// An address in a text is only a hint: the caller must check that the server really listens on its port. Query and fragment are dropped, because servers print
// their access tokens there.
package weburl

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// maxPath is the maximum length of a path, in bytes. A longer path is dropped.
const maxPath = 1024

// URL is an address found in a text.
type URL struct {
	Scheme string // http or https
	Host   string // without brackets
	Port   int32
	Path   string // begins with a slash, or is empty
	// Rank is the scope of the address: 0 for loopback, 1 for all addresses of this machine, 2 for a name or an address on the network.
	Rank int
}

// String returns the address as a URL for a browser.
func (u URL) String() string {
	host := u.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	path := u.Path
	if path == "" {
		path = "/"
	}
	return u.Scheme + "://" + host + ":" + strconv.Itoa(int(u.Port)) + path
}

var (
	address = regexp.MustCompile(`(?i)\b(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?(/[^\s"'<>\x60{}|\\^?#]*)?`)
	// sentence matches the output of Python's http.server. Before Python 3.5, that output contains no URL.
	sentence = regexp.MustCompile(`(?i)\b(https?) on (\[?[0-9a-z:._-]+\]?) port ([0-9]{1,5})\b`)
)

// Find returns the addresses of servers in one line, in the order of the text. It first removes color codes, which may occur within a port.
func Find(line string) []URL {
	if !strings.Contains(line, "//") && !strings.Contains(line, "port") {
		return nil
	}
	line = ansi.Strip(line)
	var found []URL
	for _, match := range address.FindAllStringSubmatch(line, -1) {
		if u, ok := parse(match[1], match[2], strings.TrimPrefix(match[3], ":"), match[4]); ok {
			found = append(found, u)
		}
	}
	if len(found) > 0 {
		return found
	}
	for _, match := range sentence.FindAllStringSubmatch(line, -1) {
		if u, ok := parse(match[1], match[2], match[3], ""); ok {
			found = append(found, u)
		}
	}
	return found
}

// parse returns the URL of a match. A host on the network counts only with a port of at least two digits, because links to documentation have no port.
func parse(scheme, host, port, path string) (URL, bool) {
	u := URL{Scheme: strings.ToLower(scheme), Host: strings.ToLower(strings.Trim(host, "[]"))}
	u.Rank = rank(u.Host)
	u.Path = cleanPath(path)
	switch {
	case port != "":
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 || (u.Rank == rankNetwork && len(port) < 2) {
			return URL{}, false
		}
		u.Port = int32(number)
	case u.Rank == rankNetwork:
		return URL{}, false
	case u.Scheme == "https":
		u.Port = 443
	default:
		u.Port = 80
	}
	return u, true
}

const (
	rankLoopback = iota
	rankWildcard
	rankNetwork
)

func rank(host string) int {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return rankLoopback
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return rankNetwork
	case ip.IsLoopback():
		return rankLoopback
	case ip.IsUnspecified():
		return rankWildcard
	}
	return rankNetwork
}

// IsLoopback reports whether a host, given without brackets, is localhost, a name below localhost, or a loopback address.
func IsLoopback(host string) bool { return rank(host) == rankLoopback }

// cleanPath removes the punctuation of a surrounding sentence from the end of a path, and drops a path that is too long or contains characters other than
// visible ASCII.
func cleanPath(path string) string {
	path = strings.TrimRight(path, ".,;:!*")
	for strings.HasSuffix(path, ")") && strings.Count(path, ")") > strings.Count(path, "(") {
		path = strings.TrimRight(strings.TrimSuffix(path, ")"), ".,;:!*")
	}
	for strings.HasSuffix(path, "]") && strings.Count(path, "]") > strings.Count(path, "[") {
		path = strings.TrimSuffix(path, "]")
	}
	if len(path) > maxPath {
		return ""
	}
	for _, r := range path {
		if r < 0x21 || r > 0x7e {
			return ""
		}
	}
	return path
}
