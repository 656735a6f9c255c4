// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/weburl"
)

// found is a URL in the output.
type found = weburl.URL

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// observeURL sets status.url. The port is the port of a listening socket. The host is the one that the output names, if it leads to that socket. Scheme and
// path come from the spec, else from the output.
func (k *Kind) observeURL(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot, urls []found) {
	if s.awaited != 0 {
		return // status.url keeps the awaited port
	}
	hint, detected := match(urls, s.port)
	disabled := inPod(dev) || dev.Spec.URL.Detect == v1alpha1.URLDetectionDisabled
	switch {
	case inPod(dev):
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonDetectionDisabled, "Berth does not search the output of Pods for a URL. spec.url sets scheme and path.")
	case disabled:
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonDetectionDisabled, "")
	case !m.logKnown && k.detectedBefore(dev, s):
		return // an earlier manager knew where the output of this incarnation begins; a URL found now may come from an earlier incarnation
	case detected:
		k.set(dev, v1alpha1.ConditionURLDetected, true, v1alpha1.ReasonDetected, "The server printed "+hint.String())
	default:
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonNotDetected, "The server has not printed its URL yet.")
	}
	if s.port == 0 {
		return
	}
	if !disabled && !detected && !s.settled && k.stands(ctx, dev, m, s) {
		return // the server restarts and may still print its URL
	}
	scheme := cmp.Or(dev.Spec.URL.Scheme, hint.Scheme, "http")
	if assigned(dev).proxied {
		scheme = "http"
	}
	// The paths in spec and output are already escaped.
	dev.Status.URL = scheme + "://" + k.address(ctx, dev, m, s, hint.Host) + cmp.Or(dev.Spec.URL.Path, hint.Path, "/")
}

// address returns host:port for status.url. printed is the host that the output names, or empty.
func (k *Kind) address(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot, printed string) string {
	switch {
	case inPod(dev):
		return join(serviceHost(dev), s.port)
	case assigned(dev).proxied:
		return k.frontAddress(dev)
	case k.leads(ctx, m, s, printed):
		return join(printed, s.port)
	}
	return join(m.hosts[s.port], s.port)
}

// stands reports whether status.url still leads to the chosen port.
func (k *Kind) stands(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot) bool {
	if assigned(dev).proxied {
		return hostOf(dev.Status.URL) == k.frontAddress(dev)
	}
	if portOf(dev.Status.URL) != s.port {
		return false
	}
	host, _, _ := net.SplitHostPort(hostOf(dev.Status.URL)) // cannot fail: stands returned above if the URL has no port
	return host == m.hosts[s.port] || k.leads(ctx, m, s, host)
}

// detectedBefore reports whether the URL was found in the output of this incarnation for the current spec, and is still valid.
func (k *Kind) detectedBefore(dev *v1alpha1.DevServer, s *socketSnapshot) bool {
	condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionURLDetected)
	return s.wasReady && condition != nil && condition.Reason == v1alpha1.ReasonDetected &&
		condition.ObservedGeneration == dev.Generation && (s.port == 0 || portOf(dev.Status.URL) == published(dev, s.port))
}

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

// hosts records the host at which each port is reached.
func (k *Kind) hosts(ctx context.Context, m *objectCache, s *socketSnapshot) {
	for _, port := range s.ports() {
		m.hosts[port] = k.host(ctx, m, s.listeners, port)
	}
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

// leads reports whether a host leads to the listeners of the chosen port and to no other program. It returns false for every host other than localhost, a
// name below localhost, or a loopback address. Browsers connect to 127.0.0.1 or ::1 for such a name; other programs need the resolver to know the name.
func (k *Kind) leads(ctx context.Context, m *objectCache, s *socketSnapshot, host string) bool {
	if !weburl.IsLoopback(host) {
		return false
	}
	if m.printed != host {
		m.printed, m.resolved = host, k.network.resolve(ctx, host)
	}
	own := func(ip netip.Addr) bool { return k.listensOn(ctx, m, s, ip) }
	if !slices.ContainsFunc(m.resolved, own) {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !slices.ContainsFunc(append([]netip.Addr{loopback, netip.IPv6Loopback()}, m.resolved...), func(ip netip.Addr) bool {
		return !own(ip) && (!ip.IsLoopback() || k.answersElsewhere(ctx, m, join(ip.String(), s.port)))
	})
}

// listensOn reports whether a connection to the chosen port at a loopback address reaches a listener of the server.
func (k *Kind) listensOn(ctx context.Context, m *objectCache, s *socketSnapshot, ip netip.Addr) bool {
	for _, address := range listeningAt(s.listeners, s.port) {
		switch {
		case address == ip, ip.Is4() && address == netip.IPv4Unspecified(), ip.Is6() && address == netip.IPv6Unspecified():
			return true
		case address == netip.IPv6Unspecified() && k.reachedOverV4(ctx, m, s.port):
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
