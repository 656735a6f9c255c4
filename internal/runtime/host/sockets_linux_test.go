// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
)

// sharingServer listens with SO_REUSEPORT. It starts a worker that inherits the socket, and one that listens with a socket of its own.
const sharingServer = `
import os, socket, sys, time
def listen(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", port))
    s.listen()
    return s
s = listen(0)
port = s.getsockname()[1]
if os.fork() == 0:
    time.sleep(3600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        s.close()
        s = listen(port)
        print("listening", port, flush=True)
        time.sleep(3600)
    os._exit(0)
os.wait()
time.sleep(3600)
`

// startSharing starts the sharing server, and returns its port.
func (f *fixture) startSharing(uid types.UID) int32 {
	f.Helper()
	need.Programs(f.T, "python3")
	f.Expect(f.Start(f.ctx, runtime.Process{UID: uid, Incarnation: 1, Name: string(uid), Command: []string{"python3", "-c", sharingServer}, Dir: "/", Env: os.Environ()})).To(Succeed())
	f.await(uid, facts.Running)
	var port int
	f.Eventually(func() error {
		log, err := f.OpenLog(f.ctx, uid)
		if err != nil {
			return err
		}
		defer func() { _ = log.Close() }()
		text := make([]byte, 100)
		n, _ := log.ReadAt(text, 0)
		_, err = fmt.Sscanf(string(text[:n]), "listening %d", &port)
		return err
	}).WithTimeout(conformance.Timeout).Should(Succeed())
	return int32(port)
}

func TestListeners_WorkersAreNoOthers(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		port := f.startSharing("web")
		sockets, err := f.Listeners(f.ctx, "web")
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(sockets.Own).To(HaveLen(2), "an inherited socket is one socket")
		f.Expect(sockets.Others).To(BeEmpty())
		owners, err := f.PortOwners(f.ctx, port)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(owners).To(HaveLen(2))
		f.Expect(owners).To(HaveEach(HaveField("UID", types.UID("web"))))

		// The socket of a process that started after the processes were listed.
		members, err := f.processTree("web").Members()
		f.Expect(err).NotTo(HaveOccurred())
		all, err := listening()
		f.Expect(err).NotTo(HaveOccurred())
		late := divide(all, members[:1], inodes)
		f.Expect(late.Others).To(HaveLen(1))
		f.Expect(owners).To(ContainElement(And(HaveField("Socket", late.Others[0].Socket), HaveField("UID", types.UID("web")))))
	})
}

// If the open files of one of its processes cannot be read, an incarnation may have sockets that appear to be those of others.
func TestListeners_ReportNoOthersIfFilesAreHidden(t *testing.T) {
	own, other := socket{address: netip.IPv6Loopback(), port: 80, inode: 1}, socket{address: netip.IPv6Loopback(), port: 80, inode: 2}
	elsewhere := socket{address: netip.IPv6Loopback(), port: 81, inode: 3}
	for hidden, others := range map[bool]int{false: 1, true: 0} {
		found := divide([]socket{own, other, elsewhere}, []procstat.Process{{PID: 10}, {PID: 11}}, func(pid int) (map[uint64]bool, bool) {
			return map[uint64]bool{1: pid == 10}, hidden && pid == 11
		})
		g := NewWithT(t)
		g.Expect(found.Own).To(ConsistOf(HaveField("Socket", uint64(1))))
		g.Expect(found.Others).To(HaveLen(others))
	}
}

func TestListening_ReportsWhichSocketsAcceptOnlyIPv6(t *testing.T) {
	for network, only := range map[string]bool{"tcp": false, "tcp6": true} {
		listener, err := net.Listen(network, "[::]:0")
		if err != nil {
			need.Machine(t, fmt.Errorf("this machine has no IPv6: %w", err))
		}
		t.Cleanup(func() { _ = listener.Close() })
		port := listener.Addr().(*net.TCPAddr).Port
		g := NewWithT(t)
		found, err := on(int32(port), nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
		want := socket{address: netip.IPv6Unspecified(), port: uint16(port), inode: found[0].inode, user: uint32(os.Getuid()), ipv6Only: only}
		g.Expect(found[0]).To(Equal(want))
		all, err := listeningProc()
		g.Expect(err).NotTo(HaveOccurred())
		want.ipv6Only = false // /proc does not contain it
		g.Expect(all).To(ContainElement(want))
	}
}
