// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import "golang.org/x/sys/unix"

// olderCalls are the system calls that newer architectures do not have.
var olderCalls = map[int]int{unix.SYS_POLL: callPoll, unix.SYS_SELECT: callSelect, unix.SYS_EPOLL_WAIT: callEpoll}
