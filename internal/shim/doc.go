// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shim implements berth-shim, the small process that supervises one workload on a host, and the protocol and files through which other code uses it.
//
// The shim starts the program in its own session and cgroup, directs its output to a file, keeps its stdin open, waits for it, kills the processes it leaves
// behind, and records its exit. All this continues while the manager restarts. The files on disk are the source of truth; RecordFile and the constants beside
// it state who writes which file. Apart from small packages of Berth (facts, procstat, statedir), the package imports only the standard library, x/sys and
// creack/pty.
package shim
