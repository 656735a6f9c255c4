// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

func TestCheckHost_AllowsOnlyKnownHosts(t *testing.T) {
	allowed := []string{"app.example", "*.preview.example", "192.0.2.7"}
	for name, tc := range map[string]struct {
		host, origin string
		upgrade      bool
		want         string
	}{
		"localhost":                         {host: "localhost:5173"},
		"a subdomain of localhost":          {host: "web.LOCALHOST"},
		"the fully qualified localhost":     {host: "localhost.:5173"},
		"an address":                        {host: "127.0.0.1:5173"},
		"another loopback address":          {host: "127.3.2.1"},
		"an IPv6 address":                   {host: "[::1]:5173"},
		"an allowed name":                   {host: "App.Example:80"},
		"an allowed address":                {host: "192.0.2.7"},
		"an allowed wildcard":               {host: "pr-1.preview.example"},
		"the domain of a wildcard":          {host: "preview.example", want: reasonHost},
		"the dot of a wildcard":             {host: ".preview.example", want: reasonHost},
		"a name that rebinds":               {host: "evil.example:5173", want: reasonHost},
		"a name with an allowed end":        {host: "evilapp.example", want: reasonHost},
		"a name with an allowed beginning":  {host: "app.example.evil.example", want: reasonHost},
		"a name that looks like localhost":  {host: "localhost.evil.example", want: reasonHost},
		"a name that ends like localhost":   {host: "evillocalhost", want: reasonHost},
		"an address of the network":         {host: "192.0.2.8:5173", want: reasonHost},
		"no host":                           {host: "", want: reasonHost},
		"an IPv6 address without brackets":  {host: "::1", want: reasonHost},
		"brackets that are not closed":      {host: "[::1", want: reasonHost},
		"text after brackets":               {host: "[::1]evil.example", want: reasonHost},
		"a page of this address":            {host: "app.example:5173", origin: "http://app.example:5173", upgrade: true},
		"a page of another local port":      {host: "localhost:5173", origin: "http://127.0.0.1:3000", upgrade: true},
		"a page of an allowed name":         {host: "localhost:5173", origin: "https://app.example", upgrade: true},
		"no page":                           {host: "localhost:5173", upgrade: true},
		"a page of another site":            {host: "localhost:5173", origin: "https://evil.example", upgrade: true, want: reasonOrigin},
		"a page without an origin":          {host: "localhost:5173", origin: "null", upgrade: true, want: reasonOrigin},
		"an origin that cannot be parsed":   {host: "localhost:5173", origin: "http://[::1", upgrade: true, want: reasonOrigin},
		"a user that looks like the host":   {host: "localhost:5173", origin: "http://localhost:5173@evil.example", upgrade: true, want: reasonOrigin},
		"a request without an upgrade":      {host: "localhost:5173", origin: "https://evil.example"},
		"a host that is not allowed either": {host: "evil.example", origin: "http://evil.example", upgrade: true, want: reasonHost},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := &http.Request{Host: tc.host, Header: http.Header{}}
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			if tc.upgrade {
				r.Header.Set("Upgrade", "websocket")
			}
			err := CheckHost(r, allowed)
			if tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			var why *forbidden
			g.Expect(errors.As(err, &why)).To(BeTrue())
			g.Expect(why.reason).To(Equal(tc.want))
			g.Expect(len(err.Error())).To(BeNumerically("<", 300))
		})
	}
}

// sendHead sends the head of a request and returns the answer.
func (f *fixture) sendHead(lines ...string) *http.Response {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	f.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte(strings.Join(lines, "\r\n") + "\r\n\r\n"))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it is closed with the connection
	f.g.Expect(err).NotTo(HaveOccurred())
	return response
}

func TestProxy_RefusesRequestsOfOtherSites(t *testing.T) {
	f := newFixture(t, Options{})
	f.openServer(1, newServer(t, "127.0.0.1:0", echoUpgrade))
	upgrade := []string{"GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket"}

	refused := f.sendHead("GET / HTTP/1.1", "Host: evil.example")
	f.g.Expect(refused.StatusCode).To(Equal(http.StatusForbidden))
	f.g.Expect(refused.Header.Get(HeaderReason)).To(Equal(reasonHost))
	f.g.Expect(f.sendHead("GET http://evil.example/ HTTP/1.1", "Host: localhost").StatusCode).To(Equal(http.StatusForbidden), "the absolute form counts")

	refused = f.sendHead(append(upgrade, "Host: localhost", "Origin: http://evil.example")...)
	f.g.Expect(refused.StatusCode).To(Equal(http.StatusForbidden))
	f.g.Expect(refused.Header.Get(HeaderReason)).To(Equal(reasonOrigin))
	f.g.Expect(f.sendHead(append(upgrade, "Host: localhost", "Origin: http://localhost")...).StatusCode).To(Equal(http.StatusSwitchingProtocols))

	f.g.Expect(f.Listen(uid, "web", f.port, "app.example")).To(Succeed())
	f.g.Expect(f.sendHead(append(upgrade, "Host: app.example", "Origin: https://app.example")...).StatusCode).To(Equal(http.StatusSwitchingProtocols))
	f.g.Expect(f.Listen(uid, "web", f.port)).To(Succeed())
	f.g.Expect(f.sendHead(append(upgrade, "Host: app.example")...).StatusCode).To(Equal(http.StatusForbidden), "the name is no longer allowed")
}

func TestIPv6_ReportsPortInUse(t *testing.T) {
	f := newFixture(t, Options{})
	f.g.Expect(f.IPv6(uid)).To(Succeed())
	f.g.Expect(f.IPv6("unknown")).To(Succeed())
	before := f.port
	f.Close(uid)
	other, err := bind("tcp6", "::1", before)
	if absent(err) {
		need.Machine(t, fmt.Errorf("no IPv6 on this machine: %w", err))
	}
	f.g.Expect(err).NotTo(HaveOccurred())
	f.g.Expect(f.Listen(uid, "web", before)).To(Succeed())
	f.g.Expect(f.IPv6(uid)).To(MatchError(syscall.EADDRINUSE))
	f.g.Expect(other.Close()).To(Succeed())
	f.g.Expect(f.Listen(uid, "web", before)).To(Succeed())
	f.g.Expect(f.IPv6(uid)).To(Succeed(), "it listens once the port is free")
	conn, err := net.Dial("tcp6", fmt.Sprintf("[::1]:%d", before))
	f.g.Expect(err).NotTo(HaveOccurred())
	f.g.Expect(conn.Close()).To(Succeed())
}

func TestAbsent_DetectsMachineWithoutIPv6(t *testing.T) {
	g := NewWithT(t)
	for _, err := range []error{syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT} {
		g.Expect(absent(&net.OpError{Op: "listen", Err: err})).To(BeTrue())
	}
	g.Expect(absent(syscall.EADDRINUSE)).To(BeFalse())
	g.Expect(absent(nil)).To(BeFalse())
}

func FuzzCheckHost(f *testing.F) {
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: localhost:5173\r\n\r\n",
		"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1]:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://127.0.0.1:3000\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.b.example\r\nOrigin: null\r\nUpgrade: x\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(head))))
		if err != nil {
			return
		}
		allowed := []string{"*.b.example"}
		if weight(r) < heldOverhead {
			t.Errorf("weight %d", weight(r))
		}
		err = CheckHost(r, allowed)
		if err != nil {
			if len(err.Error()) > 3000 {
				t.Errorf("an answer of %d bytes", len(err.Error()))
			}
			return
		}
		// Every accepted host is this machine or an allowed name, in any spelling.
		host := strings.ToLower(r.Host)
		for _, known := range []string{"localhost", "127.", "::1", "b.example"} {
			if strings.Contains(host, known) {
				return
			}
		}
		if address, _, bracketed := strings.Cut(strings.TrimPrefix(host, "["), "]"); bracketed {
			if ip, err := netip.ParseAddr(address); err == nil && ip.Unmap().IsLoopback() {
				return // another spelling of the IPv6 loopback address
			}
		}
		t.Errorf("the host %q passes", r.Host)
	})
}
