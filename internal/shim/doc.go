// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shim is berth-shim: the small process that holds one workload on a host, and what others need to talk to it.
//
// The shim puts the program into a session and a cgroup of its own, lets its output go to a file, keeps its stdin open, waits for it, ends what
// it leaves behind, and writes down how it ended. The manager may come and go meanwhile. What is on disk is the truth; see Record, Identity, End
// and Request for who writes which file. The package imports the standard library, x/sys and creack/pty only.
package shim
