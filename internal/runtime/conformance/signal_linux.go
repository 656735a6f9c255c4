// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strconv"
	"strings"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// Signal sends a signal to p, and to no other process that has reused its PID. After SIGSTOP it waits until p is stopped, because a busy kernel lets a process
// run for some time after the system call has returned.
func Signal(g *WithT, p procstat.Process, signal unix.Signal) {
	fd, err := procstat.Open(p)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	g.Expect(unix.PidfdSendSignal(fd, signal, nil, 0)).To(Succeed())
	if signal == unix.SIGSTOP {
		g.Eventually(func() (string, error) {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
			_, after, _ := strings.Cut(string(stat), ") ")
			return after, err
		}).WithTimeout(Timeout).Should(HavePrefix("T"))
	}
}
