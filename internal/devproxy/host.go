// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// forbidden is the error of a request that CheckHost refuses.
type forbidden struct {
	reason, message string
}

func (f *forbidden) Error() string { return f.message }

// Reasons of requests that CheckHost refuses.
const (
	reasonHost   = "HostNotAllowed"
	reasonOrigin = "OriginNotAllowed"
)

// CheckHost returns an error if the request may come from a web page of another site. A site whose name resolves to a loopback address (DNS rebinding) sends
// its own name as Host, and browsers allow every site to open WebSockets, with the name of the site as Origin. Therefore the host must be localhost, a name
// below localhost, a loopback address or an allowed name. If an upgrade has an Origin header, which only browsers send, the origin must have either the host
// and port of the request, or a host that meets the same rule.
func CheckHost(r *http.Request, allowed []string) error {
	if !permitted(hostname(r.Host), allowed) {
		return &forbidden{reasonHost, fmt.Sprintf("the host %s is not allowed", excerpt(r.Host))}
	}
	if len(r.Header["Upgrade"]) == 0 {
		return nil
	}
	for _, origin := range r.Header["Origin"] {
		page, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(page.Host, r.Host) && !permitted(hostname(page.Host), allowed) {
			return &forbidden{reasonOrigin, fmt.Sprintf("the origin %s is not permitted to open a connection to %s", excerpt(origin), excerpt(r.Host))}
		}
	}
	return nil
}

// permitted reports whether a host name, in lower case, refers to this machine or is one of the allowed names.
func permitted(name string, allowed []string) bool {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.IsLoopback() {
		return true
	}
	for _, each := range allowed {
		each = strings.ToLower(each)
		suffix, wildcard := strings.CutPrefix(each, "*")
		if name != "" && (name == each || wildcard && strings.HasSuffix(name, suffix) && len(name) > len(suffix)) {
			return true
		}
	}
	return false
}

// hostname returns the host of host:port in lower case, without brackets and without the dot of a fully qualified name.
func hostname(hostport string) string {
	host := hostport
	if rest, bracketed := strings.CutPrefix(hostport, "["); bracketed {
		ip, port, closed := strings.Cut(rest, "]")
		if !closed || port != "" && port[0] != ':' {
			return ""
		}
		host = ip
	} else if name, port, found := strings.Cut(hostport, ":"); found {
		if strings.Contains(port, ":") {
			return "" // an IPv6 address has brackets
		}
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// longestExcerpt is how many bytes of a rejected value a response repeats.
const longestExcerpt = 100

func excerpt(value string) string { return fmt.Sprintf("%.*q", longestExcerpt, value) }
