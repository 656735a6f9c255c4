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

// host returns a host name or address of this machine that leads to the listener.
func (k *Kind) host(ctx context.Context, m *objectCache, listeners []runtime.Listener, port int32) string {
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
		if k.reachedOverV4(ctx, m, port) {
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
func (k *Kind) leads(ctx context.Context, m *objectCache, listeners []runtime.Listener, host string, port int32) bool {
	if !weburl.IsLoopback(host) {
		return false
	}
	resolved, known := m.resolved[host]
	if !known {
		resolved = k.network.resolve(ctx, host)
		m.resolved[host] = resolved
	}
	own := func(ip netip.Addr) bool { return k.listensOn(ctx, m, listeners, ip, port) }
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

// listensOn reports whether a connection to a port at a loopback address reaches a listener of the server.
func (k *Kind) listensOn(ctx context.Context, m *objectCache, listeners []runtime.Listener, ip netip.Addr, port int32) bool {
	for _, address := range listeningAt(listeners, port) {
		switch {
		case address == ip, ip.Is4() && address == netip.IPv4Unspecified(), ip.Is6() && address == netip.IPv6Unspecified():
			return true
		case address == netip.IPv6Unspecified() && k.reachedOverV4(ctx, m, port):
			return true
		}
	}
	return false
}

// answersElsewhere reports whether another program accepts connections at an address. It caches a positive result and does not connect again.
func (k *Kind) answersElsewhere(ctx context.Context, m *objectCache, address string) bool {
	if !m.elsewhere[address] && k.network.answers(ctx, address) {
		m.elsewhere[address] = true
	}
	return m.elsewhere[address]
}

// listeningAt returns the IP addresses of the listeners of a port, in ascending order.
func listeningAt(listeners []runtime.Listener, port int32) []netip.Addr {
	var found []netip.Addr
	for _, listener := range listeners {
		if ip, err := netip.ParseAddr(listener.Address); err == nil && listener.Port == port {
			found = append(found, ip.Unmap().WithZone(""))
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

// reachedOverV4 reports whether a socket on all IPv6 addresses also accepts IPv4 connections, as most do. Only a connection can show that; the result is
// cached.
func (k *Kind) reachedOverV4(ctx context.Context, m *objectCache, port int32) bool {
	known, ok := m.overV4[port]
	if !ok {
		known = k.network.answers(ctx, join("127.0.0.1", port))
		m.overV4[port] = known
	}
	return known
}
