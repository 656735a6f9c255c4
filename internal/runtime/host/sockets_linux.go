// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// socket is a listening TCP socket.
type socket struct {
	address  netip.Addr
	port     uint16
	inode    uint64
	user     uint32 // who opened the socket
	ipv6Only bool   // known only from sock_diag
}

// listening returns all listening TCP sockets of this network namespace. It queries sock_diag, which takes microseconds, and falls back to /proc.
func listening() ([]socket, error) {
	var all []socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := diagnose(family)
		if err != nil {
			return listeningProc()
		}
		all = append(all, found...)
	}
	return all, nil
}

const (
	tcpListen         = 10
	requestLength     = unix.SizeofNlMsghdr + 56 // struct inet_diag_req_v2
	responseLength    = 72                       // struct inet_diag_msg
	attributeIPv6Only = 11                       // INET_DIAG_SKV6ONLY, which the kernel adds for every listening IPv6 socket
)

// diagnose queries the kernel for the listening sockets of one address family.
func diagnose(family uint8) ([]socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	timeout := unix.Timeval{Sec: 2}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}
	request := make([]byte, requestLength)
	binary.NativeEndian.PutUint32(request[0:], requestLength)
	binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[unix.SizeofNlMsghdr] = family
	request[unix.SizeofNlMsghdr+1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[unix.SizeofNlMsghdr+4:], 1<<tcpListen)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []socket
	buf := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		done, err := parse(buf[:n], family, &all)
		if done || err != nil {
			return all, err
		}
	}
}

// parse parses one datagram of responses and reports whether the datagram was the last.
func parse(data []byte, family uint8, all *[]socket) (done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return false, errors.New("a response of the kernel is truncated")
		}
		switch binary.NativeEndian.Uint16(data[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			return false, errors.New("the kernel rejects the request to list sockets")
		}
		if m := data[unix.SizeofNlMsghdr:length]; len(m) >= responseLength {
			s := socket{port: binary.BigEndian.Uint16(m[4:]), user: binary.NativeEndian.Uint32(m[64:]), inode: uint64(binary.NativeEndian.Uint32(m[68:]))}
			if family == unix.AF_INET {
				s.address = netip.AddrFrom4([4]byte(m[8:12]))
			} else {
				s.address = netip.AddrFrom16([16]byte(m[8:24]))
				s.ipv6Only = attributeIs1(m[responseLength:], attributeIPv6Only)
			}
			*all = append(*all, s)
		}
		data = data[min(len(data), (length+3)&^3):]
	}
	return false, nil
}

// attributeIs1 reports whether netlink attributes contain an attribute of the given type with one byte that is 1.
func attributeIs1(attributes []byte, wanted uint16) bool {
	for len(attributes) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(attributes))
		if length < unix.SizeofNlAttr || length > len(attributes) {
			return false
		}
		if binary.NativeEndian.Uint16(attributes[2:]) == wanted {
			return length == unix.SizeofNlAttr+1 && attributes[unix.SizeofNlAttr] == 1
		}
		attributes = attributes[min(len(attributes), (length+3)&^3):]
	}
	return false
}

// listeningProc reads /proc/net/tcp and tcp6.
func listeningProc() ([]socket, error) {
	var all []socket
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile("/proc/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			if s, ok := parseProc(strings.Fields(line)); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// parseProc parses one line: number, local address, remote address, state, …, user, …, inode.
func parseProc(fields []string) (socket, bool) {
	if len(fields) < 10 || fields[3] != "0A" {
		return socket{}, false
	}
	host, port, _ := strings.Cut(fields[1], ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return socket{}, false
	}
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return socket{}, false
	}
	// Each group of four bytes is a number in native byte order.
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	address, ok := netip.AddrFromSlice(raw)
	user, err := strconv.ParseUint(fields[7], 10, 32)
	if err != nil {
		return socket{}, false
	}
	inode, err := strconv.ParseUint(fields[9], 10, 64)
	return socket{address: address, port: uint16(number), inode: inode, user: uint32(user)}, ok && err == nil
}

// inodes returns the inodes of the sockets that a process has open. It reports whether the process may have more, because its open files cannot be read.
func inodes(pid int) (found map[uint64]bool, hidden bool) {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return nil, errors.Is(err, fs.ErrPermission)
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	open := map[uint64]bool{}
	for _, name := range names {
		target, err := os.Readlink(dir.Name() + "/" + name)
		if number, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
			if inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
				open[inode] = true
			}
		}
		hidden = hidden || errors.Is(err, fs.ErrPermission)
	}
	return open, hidden
}
