// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// decision is the result of decide.
type decision struct {
	history
	// port is the port for status.url; 0 while there is none.
	port int32
	// awaited is the previously chosen port while it is closed and the server may still open it again; otherwise 0.
	awaited int32
	// settled reports that the check no longer waits for a better port or URL.
	settled bool
	// url is the new value of status.url.
	url string
	// observedPorts is the new value of status.observedPorts; nil leaves it unchanged.
	observedPorts []int32
	// portVerified and urlDetected are the conditions of these names; nil leaves the condition unchanged.
	portVerified, urlDetected *verdict
	// outputRead reports that no more URLs are needed, so the reader of the output can stop.
	outputRead bool
	// direct is the URL of the server itself: without the proxy, and without the Service of a Pod.
	direct string
	// contested is what the status reports about other processes that receive connections to the server.
	contested *lifecycle.Contested
}

// verdict is the value of a condition.
type verdict struct {
	ok              bool
	reason, message string
}

// decide determines the port, the URL and the conditions of a running server from the facts. It has no side effects.
func decide(dev *v1alpha1.DevServer, s snapshot) decision {
	d := decision{history: s.history, url: dev.Status.URL}
	d.proven = d.proven || s.wasReady
	if s.wasReady && !recordedPorts(dev).proxied {
		d.chosen = portOf(dev.Status.URL) // this manager or an earlier one chose the port
	}
	if len(s.listeners) > 0 && d.listeningSince.IsZero() {
		d.listeningSince = s.now
	}
	d.settled = !d.listeningSince.IsZero() && s.now.Sub(d.listeningSince) >= settleTime
	d.chooseURLPort(dev, s)
	d.verifyPort(dev, s)
	d.chooseURL(dev, s)
	d.chooseTargets(dev, s)
	d.contested = d.contest(dev, s)
	_, detected := match(s.urls, d.port)
	d.outputRead = d.settled && (detected || s.now.Sub(d.listeningSince) >= textTime)
	return d
}

// chooseURLPort chooses the port of status.url. Behind a proxy it is the port that the proxy forwards to.
func (d *decision) chooseURLPort(dev *v1alpha1.DevServer, s snapshot) {
	if s.blind != "" {
		return
	}
	c := choice{listening: s.ports(), given: recordedPorts(dev).own(), printed: s.urls, settled: d.settled}
	if d.proven {
		c.chosen = d.chosen
	}
	if d.absentSince.IsZero() {
		d.absentSince = s.now
	}
	c.returning = s.now.Sub(d.absentSince) < returnTime
	if d.port, d.awaited = c.port(); d.port != 0 {
		d.chosen, d.absentSince = d.port, time.Time{}
	}
}

// choice holds the inputs for choosing the port of status.url.
type choice struct {
	listening []int32 // ascending
	given     int32   // the value of $(PORT)
	chosen    int32   // the previously chosen port if the incarnation was Ready; otherwise 0
	returning bool    // chosen is open, or has been closed for less than returnTime
	printed   []found // the URLs in the output
	settled   bool    // the server had time to open the given port and to print a URL
}

// port returns the first of these ports that is open: the given port, the previously chosen port, the best-ranked port in the output and, only once settled
// is true, the lowest port. If the given port is closed, and the previously chosen port is closed but may still open again, port returns 0 and, as awaited,
// the previously chosen port. Both results are 0 if no port can be chosen.
func (c choice) port() (port, awaited int32) {
	printed := slices.DeleteFunc(slices.Clone(c.printed), func(u found) bool { return !slices.Contains(c.listening, u.Port) })
	switch {
	case slices.Contains(c.listening, c.given):
		return c.given, 0
	case slices.Contains(c.listening, c.chosen):
		return c.chosen, 0
	case c.chosen != 0 && c.returning:
		return 0, c.chosen
	case len(printed) > 0:
		return slices.MinFunc(printed, func(a, b found) int { return cmp.Or(a.Rank-b.Rank, int(a.Port-b.Port)) }).Port, 0
	case len(c.listening) > 0 && c.settled:
		return c.listening[0], 0
	}
	return 0, 0
}

// ports returns the ports that the processes listen on, in ascending order.
func (s *snapshot) ports() []int32 {
	ports := make([]int32, 0, len(s.listeners))
	for _, listener := range s.listeners {
		ports = append(ports, listener.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// verifyPort determines status.observedPorts and the condition PortVerified, which reports whether the server listens on the port that it was given.
func (d *decision) verifyPort(dev *v1alpha1.DevServer, s snapshot) {
	if s.blind != "" || s.remote {
		return
	}
	ports, given := s.ports(), recordedPorts(dev).own()
	d.observedPorts = ports[:min(len(ports), maxObservedPorts)]
	d.portVerified = &verdict{reason: v1alpha1.ReasonNotListening}
	switch {
	case slices.Contains(ports, given):
		*d.portVerified = verdict{ok: true, reason: v1alpha1.ReasonListening, message: withoutIPv6(dev, s.ipv6Error)}
	case len(ports) == 0:
		d.portVerified.message = fmt.Sprintf("The server does not listen on port %d.", given)
	case d.port == 0:
		d.portVerified.message = fmt.Sprintf("The server listens on %s but not yet on port %d.", list(d.observedPorts), given)
	default:
		d.portVerified.reason = v1alpha1.ReasonOtherPort
		d.portVerified.message = fmt.Sprintf("The server listens on %s instead of %d. Pass $(PORT) to the program, with its flag that forbids another port "+
			"(such as --strictPort), or set spec.port to the port that it uses.", list(d.observedPorts), given)
	}
}

func list(ports []int32) string {
	words := make([]string, len(ports))
	for i, port := range ports {
		words[i] = strconv.Itoa(int(port))
	}
	return strings.Join(words, ", ")
}

// chooseURL determines status.url and the condition URLDetected. The port of the URL is the port of a listening socket. The host is the one that the output
// names, if it leads to that socket. Scheme and path come from the spec, else from the output.
func (d *decision) chooseURL(dev *v1alpha1.DevServer, s snapshot) {
	if d.awaited != 0 {
		return // status.url keeps the awaited port
	}
	hint, detected := match(s.urls, d.port)
	disabled := s.remote || dev.Spec.URL.Detect == v1alpha1.URLDetectionDisabled
	switch {
	case s.remote:
		d.urlDetected = &verdict{reason: v1alpha1.ReasonDetectionDisabled, message: "Berth does not search the output of Pods for a URL. spec.url sets scheme and path."}
	case disabled:
		d.urlDetected = &verdict{reason: v1alpha1.ReasonDetectionDisabled}
	case !s.newOutput && detectedBefore(dev, s, d.port):
		d.keepURL(dev, s)
		return
	case detected:
		d.urlDetected = &verdict{ok: true, reason: v1alpha1.ReasonDetected, message: "The server printed " + hint.String()}
	default:
		d.urlDetected = &verdict{reason: v1alpha1.ReasonNotDetected, message: "The output contains no URL at which the server listens."}
	}
	if d.port == 0 {
		return
	}
	if !disabled && !detected && !d.settled && d.urlStillLeads(dev, s) {
		return // the server restarts and may still print its URL
	}
	scheme := cmp.Or(lower(dev.Spec.URL.Scheme), hint.Scheme, "http")
	if recordedPorts(dev).proxied {
		scheme = "http"
	}
	// The paths in spec and output are already escaped.
	d.url = scheme + "://" + d.address(dev, s, hint.Host) + cmp.Or(dev.Spec.URL.Path, hint.Path, "/")
}

// keepURL keeps status.url. An earlier manager knew where the output of this incarnation begins; a URL found now may come from an earlier incarnation. Only the
// host changes, if another program has come to the printed one.
func (d *decision) keepURL(dev *v1alpha1.DevServer, s snapshot) {
	if d.port != 0 && !d.urlStillLeads(dev, s) {
		d.url = withHost(dev.Status.URL, d.address(dev, s, ""))
	}
}

// address returns host:port for status.url. printed is the host that the output names, or empty.
func (d *decision) address(dev *v1alpha1.DevServer, s snapshot, printed string) string {
	switch {
	case s.remote:
		return join(s.serviceHost, d.port)
	case recordedPorts(dev).proxied:
		return join(s.proxyHost, dev.Status.Port)
	case s.reaches[join(printed, d.port)]:
		return join(printed, d.port)
	}
	return join(s.hosts[d.port], d.port)
}

// urlStillLeads reports whether the current status.url leads to the chosen port.
func (d *decision) urlStillLeads(dev *v1alpha1.DevServer, s snapshot) bool {
	present := hostOf(dev.Status.URL)
	if recordedPorts(dev).proxied {
		return present == join(s.proxyHost, dev.Status.Port)
	}
	host, _, err := net.SplitHostPort(present)
	return err == nil && portOf(dev.Status.URL) == d.port && (host == s.hosts[d.port] || s.reaches[present])
}

// detectedBefore reports whether the URL was found in the output of this incarnation for the current spec, and is still valid.
func detectedBefore(dev *v1alpha1.DevServer, s snapshot, port int32) bool {
	condition := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionURLDetected)
	return s.wasReady && condition != nil && condition.Reason == v1alpha1.ReasonDetected &&
		condition.ObservedGeneration == dev.Generation && (port == 0 || portOf(dev.Status.URL) == published(dev, port))
}

// chooseTargets determines where the probes and the proxy reach the server. Probes that name no port use the port on which the server listens or last
// listened. If this manager has not seen the server listen, but the server was Ready, these probes use the port in status.url or, behind a proxy, the port
// that the server was given.
func (d *decision) chooseTargets(dev *v1alpha1.DevServer, s snapshot) {
	ports := recordedPorts(dev)
	switch {
	case d.port != 0:
		d.probePort = d.port
	case d.probePort == 0 && d.proven && s.blind == "":
		if !ports.proxied {
			d.probePort = portOf(dev.Status.URL)
		}
		d.probePort = cmp.Or(d.probePort, ports.own())
	}
	switch {
	case !ports.proxied:
	case d.port != 0:
		d.backend = serverURL(dev, s, d.port)
	case d.backend == "" && s.blind != "":
		d.backend = serverURL(dev, s, ports.backend) // the port that the server was given
	}
	d.direct = d.url
	if ports.proxied || s.remote {
		d.direct = serverURL(dev, s, d.port)
		if address, err := url.Parse(d.url); err == nil {
			d.direct += address.RequestURI()
		}
	}
}

// serverURL returns the URL of a port of the server. It ignores the scheme of a URL in the output, because any text can appear there.
func serverURL(dev *v1alpha1.DevServer, s snapshot, port int32) string {
	return cmp.Or(lower(dev.Spec.URL.Scheme), "http") + "://" + s.socket(port)
}

// lower returns the scheme of the API as it appears in a URL, or "" if it is unset.
func lower(scheme v1alpha1.URLScheme) string {
	return strings.ToLower(string(scheme))
}

// socket returns host:port for a port of the server, with the host at which the server last listened on that port.
func (s *snapshot) socket(port int32) string {
	return join(cmp.Or(s.hosts[port], s.address, "127.0.0.1"), port)
}
