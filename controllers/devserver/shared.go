// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// ownersTime is how long the owners of sockets are cached while the sockets do not change. A socket can pass to another process, for example to a worker whose
	// parent has exited.
	ownersTime = time.Minute
	// ownersPause is the minimum time between two searches for owners, because a process can open and close sockets all the time.
	ownersPause = time.Second
	// maxSharedPorts is the maximum number of ports of one server for whose sockets owners are determined.
	maxSharedPorts = 2
	// longestOwners is the maximum number of owners that a message names.
	longestOwners = 3
)

// sharedPort describes the processes that receive connections to a port of the server and do not belong to it.
type sharedPort struct {
	port   int32
	owners []string // for messages
	// wins reports that all of them belong to DevServers over which this one has precedence.
	wins bool
}

// socketOwners caches the owners of the sockets that share the ports of a server.
type socketOwners struct {
	sockets []uint64
	since   time.Time
	owners  map[int32][]runtime.PortOwner
}

// sharedPorts returns the ports of the server whose connections other processes also receive. It determines the owners of the other sockets only if these
// sockets have changed, because that is expensive.
func (k *Kind) sharedPorts(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, sockets runtime.Sockets) []sharedPort {
	rivals := rivalsOf(sockets)
	if len(rivals) == 0 {
		m.rivals = socketOwners{since: m.rivals.since}
		return nil
	}
	k.identify(ctx, dev, m, rivals)
	var all v1alpha1.DevServerList
	if err := k.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil { // read-only
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the DevServers that may listen on the same port")
	}
	var found []sharedPort
	for port, owners := range m.rivals.owners {
		c := sharedPort{port: port, wins: true}
		for i := range owners {
			if !slices.ContainsFunc(rivals, func(l runtime.Listener) bool { return l.Socket == owners[i].Socket }) {
				continue // closed since the last search
			}
			c.wins = c.wins && precedes(dev, &all, &owners[i], port)
			if text := k.describe(ctx, &owners[i], &all, dev.Namespace); !slices.Contains(c.owners, text) {
				c.owners = append(c.owners, text)
			}
		}
		if len(c.owners) > 0 {
			slices.Sort(c.owners)
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b sharedPort) int { return int(a.port - b.port) })
	return found
}

// rivalsOf returns the sockets of other processes that receive connections to the server. A server can have very many sockets, so each socket of another process is
// compared only with those that have the same address or are on all addresses.
func rivalsOf(sockets runtime.Sockets) []runtime.Listener {
	type place struct {
		port int32
		ip   netip.Addr
	}
	own := make(map[place]runtime.Listener, len(sockets.Own))
	for _, l := range sockets.Own {
		at := place{l.Port, addressOf(l)}
		if known, ok := own[at]; !ok || known.IPv6Only {
			own[at] = l
		}
	}
	return slices.DeleteFunc(slices.Clone(sockets.Others), func(rival runtime.Listener) bool {
		for _, ip := range []netip.Addr{addressOf(rival), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if l, ok := own[place{rival.Port, ip}]; ok && takes(rival, l) {
				return false
			}
		}
		return true
	})
}

// identify determines the owners of the rivals. It leaves out sockets that have been closed meanwhile, and those of processes that the server itself has just
// started. Of many ports it examines only maxSharedPorts, first that of status.url.
func (k *Kind) identify(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, rivals []runtime.Listener) {
	all, sockets := make([]uint64, 0, len(rivals)), map[int32][]uint64{}
	for _, rival := range rivals {
		all, sockets[rival.Port] = append(all, rival.Socket), append(sockets[rival.Port], rival.Socket)
	}
	slices.Sort(all)
	if age := k.clock.Since(m.rivals.since); age < ownersPause || age < ownersTime && slices.Equal(all, m.rivals.sockets) {
		return
	}
	m.rivals = socketOwners{sockets: all, since: k.clock.Now(), owners: map[int32][]runtime.PortOwner{}}
	first := []int32{m.chosen, recordedPorts(dev).own(), portOf(dev.Status.URL)}
	ports := slices.SortedFunc(maps.Keys(sockets), func(a, b int32) int {
		return cmp.Or(rank(first, a)-rank(first, b), int(a-b))
	})
	for _, port := range ports[:min(len(ports), maxSharedPorts)] {
		owners, err := k.inspector.PortOwners(ctx, port, sockets[port]...)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot determine which other processes listen on a port of a DevServer", "port", port)
		}
		owners = slices.DeleteFunc(owners, func(owner runtime.PortOwner) bool {
			return owner.UID == dev.UID || !slices.Contains(sockets[port], owner.Socket)
		})
		if len(owners) > 0 {
			m.rivals.owners[port] = owners
		}
	}
}

// rank returns the position of a port in a list, or the length of the list if the port is not in it.
func rank(list []int32, port int32) int {
	if i := slices.Index(list, port); i >= 0 {
		return i
	}
	return len(list)
}

// precedes reports whether the owner of a socket is a DevServer over which dev has precedence: the port is assigned to dev and not to the other one. If that does
// not decide, the one that is Ready with this port has precedence, then the older one.
func precedes(dev *v1alpha1.DevServer, all *v1alpha1.DevServerList, owner *runtime.PortOwner, port int32) bool {
	for i := range all.Items {
		if other := &all.Items[i]; owner.UID != "" && other.UID == owner.UID {
			own, _ := claimOn(dev, port)
			theirs, _ := claimOn(other, port)
			if own.Holds == theirs.Holds {
				own.Holds, theirs.Holds = serves(dev, port), serves(other, port)
			}
			return arbitration.First([]arbitration.Claim{own, theirs}).UID == dev.UID
		}
	}
	return false
}

// serves reports whether the status records a DevServer as Ready with a port in status.url.
func serves(dev *v1alpha1.DevServer, port int32) bool {
	return portOf(dev.Status.URL) == port && meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady)
}

// takes reports whether a socket receives connections that another socket on the same port would receive without it.
func takes(rival, own runtime.Listener) bool {
	for _, ip := range []netip.Addr{addressOf(rival), addressOf(own), loopback, netip.IPv6Loopback()} {
		if precedence := precedenceAt(own, ip); precedence > 0 && precedenceAt(rival, ip) >= precedence {
			return true
		}
	}
	return false
}

// precedenceAt returns which of the sockets on a port receive the connections to an address: those with the highest result. Several sockets with the highest result
// share the connections. The result is 0 for a socket that never receives connections to the address.
func precedenceAt(l runtime.Listener, ip netip.Addr) int {
	switch own := addressOf(l); {
	case !own.IsValid() || !ip.IsValid():
		return 0
	case own.IsUnspecified() && own.Is4() == ip.Is4():
		return 2
	case own.IsUnspecified() && ip.Is4() && !l.IPv6Only:
		return 1
	case own == ip && !ip.IsUnspecified():
		return 3
	}
	return 0
}

// contest returns what the status reports about shared ports; nil if there are none. The port of status.url matters most. While the sockets cannot be read, the
// status stays as it is.
func (d *decision) contest(dev *v1alpha1.DevServer, s snapshot) *lifecycle.Contested {
	if s.blind != "" {
		return recordedContest(dev)
	}
	if len(s.shared) == 0 {
		return nil
	}
	c := s.shared[max(0, slices.IndexFunc(s.shared, func(c sharedPort) bool { return c.port == d.port }))]
	owners := c.owners[:min(len(c.owners), longestOwners)]
	if len(c.owners) > len(owners) {
		owners = append(slices.Clone(owners), "others")
	}
	next := nextPorts(dev)
	return &lifecycle.Contested{
		Reason:    v1alpha1.ReasonPortShared,
		Message:   fmt.Sprintf("Connections to port %d also reach %s. Stop the other server, or %s.", c.port, strings.Join(owners, ", "), d.remedy(dev, c.port)),
		Yields:    c.port == d.port && !c.wins,
		Obstructs: !next.proxied && next.public == c.port,
	}
}

// remedy returns how the server gets a port of its own, other than by stopping the other process.
func (d *decision) remedy(dev *v1alpha1.DevServer, port int32) string {
	ports := recordedPorts(dev)
	switch {
	case port != ports.own():
		return "pass $(PORT) to the program"
	case ports.proxied:
		return "restart the server, which then gets another port"
	}
	return "set another spec.port"
}

// recordedContest returns what the status already reports; nil if it reports no shared port.
func recordedContest(dev *v1alpha1.DevServer) *lifecycle.Contested {
	conflict := meta.FindStatusCondition(dev.Status.Conditions, v1alpha1.ConditionConflict)
	if conflict == nil || conflict.Reason != v1alpha1.ReasonPortShared || conflict.Status != metav1.ConditionTrue {
		return nil
	}
	return &lifecycle.Contested{
		Reason: conflict.Reason, Message: conflict.Message, Yields: meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionStalled),
	}
}
