// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// observedHost is a Host that calls a function after each observation, before it returns the result.
type observedHost struct {
	Host
	observed atomic.Pointer[func([]facts.Incarnation)]
}

func (h *observedHost) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := h.Host.Observe(ctx, uid)
	if after := h.observed.Load(); after != nil {
		(*after)(found)
	}
	return found, err
}

// A request that arrives while the goroutine that maintains a session decides to return is not lost: the session is released.
func TestKeep_IsNotLostWhileMaintenanceEnds(t *testing.T) {
	f := newFixture(t)
	f.Runtime.Close()
	machine := &observedHost{Host: f.machine}
	var err error
	f.Runtime, err = New(machine, Options{Dir: filepath.Join(f.dir, "tmux"), Shim: filepath.Join(programs, "berth-shim"), Socket: f.socket})
	f.Expect(err).NotTo(HaveOccurred())

	uid := f.start(sessionConfig{Session: "agent"}, "sleep")
	f.awaitWindow(uid)
	f.mustTmux("split-window", "-d", "-t", "=agent:", "sleep 1000") // keeps the session without Berth's window
	rec, err := f.read(uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.killAndWait(uid)

	// The goroutine waits for the exit of the window. Then it observes that the process has exited, and returns, because the next start opens the window again.
	asked := make(chan struct{})
	var once atomic.Bool
	withdraw := func([]facts.Incarnation) {
		if once.CompareAndSwap(false, true) {
			f.Keep(uid, false)
			close(asked)
		}
	}
	machine.observed.Store(&withdraw)
	conformance.Signal(f.WithT, rec.Pane, unix.SIGKILL)
	f.Eventually(asked).WithTimeout(patience).Should(BeClosed())
	f.awaitNoSession(uid)
}
