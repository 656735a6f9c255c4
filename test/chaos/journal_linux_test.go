// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// journal counts operations and faults, and keeps the details of the latest ones for a report.
type journal struct {
	mu     sync.Mutex
	counts map[string]int
	last   []string
}

const journalLength = 80

func newJournal() *journal { return &journal{counts: map[string]int{}} }

// record counts one operation or fault and records its details.
func (j *journal) record(what, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[what]++
	j.last = append(j.last, time.Now().Format("15:04:05.000 ")+what+" "+fmt.Sprintf(format, args...))
	if extra := len(j.last) - journalLength; extra > 0 {
		j.last = slices.Delete(j.last, 0, extra)
	}
}

func (j *journal) recent() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.last, "\n")
}

func (j *journal) summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	words := make([]string, 0, len(j.counts))
	for _, what := range slices.Sorted(maps.Keys(j.counts)) {
		words = append(words, fmt.Sprintf("%s %d", what, j.counts[what]))
	}
	return strings.Join(words, ", ")
}

// eventually calls try until try succeeds. When patience has passed, it returns the last error of try.
func eventually(ctx context.Context, patience, every time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !sleep(ctx, every) {
			return fmt.Errorf("after %s: %w", patience, err)
		}
	}
}

// sleep waits for d. It returns false if the context ends before d has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
