// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/berth-dev/berth/internal/procstat"
)

// Usage returns the memory of the process tree, and the CPU time that the tree has used so far. The CPU time never decreases, but may omit processes that have
// exited.
func (p *Process) Usage() (memoryBytes int64, cpu time.Duration, err error) {
	members, err := p.tree.Members()
	if err != nil {
		return 0, 0, err
	}
	for _, member := range members {
		memory, used := procstat.Usage(member.PID)
		memoryBytes, cpu = memoryBytes+memory, cpu+used
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, cpu)
	return memoryBytes, p.most, nil
}
