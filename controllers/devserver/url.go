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

// found is an address of the output.
type found = weburl.URL

// observeURL makes the address: the port from the sockets, the host one that answers, scheme and path from the spec or from the output.
func (k *Kind) observeURL(dev *v1alpha1.DevServer, m *memory, s *sight, urls []found) {
	hint, detected := match(urls, s.port)
	disabled := inPod(dev) || dev.Spec.URL.Detect == v1alpha1.URLDetectionDisabled
	switch {
	case inPod(dev):
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonDetectionDisabled, "the output of a Pod is not searched: spec.url says scheme and path")
	case disabled:
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonDetectionDisabled, "")
	case !m.logKnown && k.detectedBefore(dev, s):
		return // an earlier manager knew where the output begins; what is found now may be something else
	case detected:
		k.set(dev, v1alpha1.ConditionURLDetected, true, v1alpha1.ReasonDetected, "the output says "+hint.String())
	default:
		k.set(dev, v1alpha1.ConditionURLDetected, false, v1alpha1.ReasonNotDetected, "no address of this server was found in its output so far")
	}
	if s.port == 0 {
		return
	}
	host, scheme := join(m.hosts[s.port], s.port), cmp.Or(dev.Spec.URL.Scheme, hint.Scheme, "http")
	if assigned(dev).proxied {
		host, scheme = frontAddress(dev), "http"
	}
	if inPod(dev) {
		host = join(serviceHost(dev), s.port)
	}
	if !disabled && !detected && !s.settled && hostOf(dev.Status.URL) == host {
		return // it restarts, and has not said yet where it is to be found this time
	}
	// What stands in spec and output is escaped already, where it has to be.
	dev.Status.URL = scheme + "://" + host + cmp.Or(dev.Spec.URL.Path, hint.Path, "/")
}

// detectedBefore says that the address was found in the output of this incarnation, for the spec as it is, and still stands.
func (k *Kind) detectedBefore(dev *v1alpha1.DevServer, s *sight) bool {
	condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionURLDetected)
	return s.wasReady && condition != nil && condition.Reason == v1alpha1.ReasonDetected &&
		condition.ObservedGeneration == dev.Generation && (s.port == 0 || portOf(dev.Status.URL) == published(dev, s.port))
}

// match gives the address of the output that names the port.
func match(urls []found, port int32) (found, bool) {
	for _, u := range urls {
		if u.Port == port && port != 0 {
			return u, true
		}
	}
	return found{}, false
}

// portOf gives the port of an address that Berth has made; 0 when there is none.
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

// hostOf gives host:port of an address that Berth has made.
func hostOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// hosts keeps by which name each port is reached.
func (k *Kind) hosts(ctx context.Context, m *memory, s *sight) {
	for _, port := range s.ports() {
		m.hosts[port] = k.host(ctx, m, s.listeners, port)
	}
}

// host chooses a name for this machine that leads to the listener.
func (k *Kind) host(ctx context.Context, m *memory, listeners []runtime.Listener, port int32) string {
	var addresses []netip.Addr
	for _, listener := range listeners {
		if ip, err := netip.ParseAddr(listener.Address); err == nil && listener.Port == port {
			addresses = append(addresses, ip.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
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

func first(addresses []netip.Addr, which func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(addresses, which); i >= 0 {
		return addresses[i]
	}
	return netip.Addr{}
}

// reachedOverV4 says whether a socket on all IPv6 addresses takes connections over IPv4 too, as most do. Only trying tells; once is enough.
func (k *Kind) reachedOverV4(ctx context.Context, m *memory, port int32) bool {
	known, ok := m.overV4[port]
	if !ok {
		known = k.network.answers(ctx, join("127.0.0.1", port))
		m.overV4[port] = known
	}
	return known
}
