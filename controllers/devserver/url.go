// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/weburl"
)

// found is a URL in the output.
type found = weburl.URL

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// match returns the URL in the output that names the port.
func match(urls []found, port int32) (found, bool) {
	for _, u := range urls {
		if u.Port == port && port != 0 {
			return u, true
		}
	}
	return found{}, false
}

// portOf returns the port of a URL that Berth has made. It returns 0 if there is none.
func portOf(address string) int32 {
	_, text, err := net.SplitHostPort(hostOf(address))
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int32(port)
}

// hostOf returns host:port of a URL that Berth has made.
func hostOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// withHost returns a URL that Berth has made, with another host:port.
func withHost(address, host string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return address
	}
	parsed.Host = host
	return parsed.String()
}

// hostFor returns a host name or address of this machine that leads to the listeners of a port.
func hostFor(listeners []runtime.Listener, port int32) string {
	addresses := listeningAt(listeners, port)
	v4, v6 := first(addresses, func(ip netip.Addr) bool { return ip.Is4() && ip.IsLoopback() }), slices.Contains(addresses, netip.IPv6Loopback())
	switch {
	case len(addresses) == 0, slices.Contains(addresses, netip.IPv4Unspecified()):
		return "127.0.0.1"
	case v4.IsValid() && v6:
		return "localhost"
	case v4.IsValid():
		return v4.String()
	case slices.Contains(addresses, netip.IPv6Unspecified()):
		if slices.ContainsFunc(listeners, func(l runtime.Listener) bool { return l.Port == port && precedenceAt(l, loopback) > 0 }) {
			return "127.0.0.1"
		}
		return "::1"
	case v6:
		return "::1"
	default:
		return addresses[0].String()
	}
}

// leads reports whether a host leads to the listeners of a port and to no other program. It returns false for every host other than localhost, a name below
// localhost, or a loopback address. For such a name, browsers connect to 127.0.0.1 or ::1, and other programs connect to the addresses that the resolver
// returns. Therefore leads checks all of these addresses, and returns false for a name that the resolver does not know.
func (k *Kind) leads(ctx context.Context, m *objectCache, s *snapshot, host string, port int32) bool {
	if !weburl.IsLoopback(host) {
		return false
	}
	resolved, known := m.resolved[host]
	if !known {
		resolved = k.network.resolve(ctx, host)
		m.resolved[host] = resolved
	}
	own := func(ip netip.Addr) bool { return s.listensOn(ip, port) }
	if !slices.ContainsFunc(resolved, own) {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !slices.ContainsFunc(append([]netip.Addr{loopback, netip.IPv6Loopback()}, resolved...), func(ip netip.Addr) bool {
		return !own(ip) && (!ip.IsLoopback() || k.answersElsewhere(ctx, m, join(ip.String(), port)))
	})
}

// listensOn reports whether a connection to a port at an address reaches a listener of the server. If sockets of other processes share the connections, it may
// also reach those (see sharedPort).
func (s *snapshot) listensOn(ip netip.Addr, port int32) bool {
	best := func(listeners []runtime.Listener) (best int) {
		for _, l := range listeners {
			if l.Port == port {
				best = max(best, precedenceAt(l, ip))
			}
		}
		return best
	}
	own := best(s.listeners)
	return own > 0 && own >= best(s.others)
}

// answersElsewhere reports whether another program accepts connections at an address. It caches a positive result and does not connect again.
func (k *Kind) answersElsewhere(ctx context.Context, m *objectCache, address string) bool {
	if !m.elsewhere[address] && k.network.answers(ctx, address) {
		m.elsewhere[address] = true
	}
	return m.elsewhere[address]
}

// addressOf returns the IP address of a listener, or the zero Addr if it is invalid. An IPv4 address that is mapped to IPv6 becomes an IPv4 address.
func addressOf(l runtime.Listener) netip.Addr {
	ip, err := netip.ParseAddr(l.Address)
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap().WithZone("")
}

// listeningAt returns the IP addresses of the listeners of a port, in ascending order.
func listeningAt(listeners []runtime.Listener, port int32) []netip.Addr {
	var found []netip.Addr
	for _, listener := range listeners {
		if ip := addressOf(listener); ip.IsValid() && listener.Port == port {
			found = append(found, ip)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

func first(addresses []netip.Addr, which func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(addresses, which); i >= 0 {
		return addresses[i]
	}
	return netip.Addr{}
}
