// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/tmux"
)

// observedTmux is the tmux runtime with a function that is called before each Observe of a UID.
type observedTmux struct {
	*tmux.Runtime
	socket string

	mu        sync.Mutex
	onObserve func(uid types.UID)
}

func (p *observedTmux) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	p.mu.Lock()
	onObserve := p.onObserve
	p.mu.Unlock()
	if onObserve != nil {
		onObserve(uid)
	}
	return p.Runtime.Observe(ctx, uid)
}

func (p *observedTmux) setOnObserve(do func(uid types.UID)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onObserve = do
}

// withTmux replaces the manager of the row with one that can run Instances in tmux, on its own tmux server.
func (e *testEnv) withTmux() *observedTmux {
	GinkgoHelper()
	requireTmux()
	e.stop()
	p := &observedTmux{socket: e.namespace}
	DeferCleanup(func() {
		_ = exec.Command("tmux", "-L", p.socket, "-f", "/dev/null", "kill-server").Run() // the server may have exited with its last session
		dir := cmp.Or(os.Getenv("TMUX_TMPDIR"), "/tmp")
		_ = os.Remove(filepath.Join(dir, fmt.Sprintf("tmux-%d", os.Geteuid()), p.socket)) // tmux does not remove its socket
	})
	var err error
	p.Runtime, err = tmux.New(e.host, tmux.Options{Dir: filepath.Join(e.dir, "tmux"), Shim: e.shim, Socket: p.socket})
	Expect(err).NotTo(HaveOccurred(), "tmux is required: it is a package of every distribution")
	all := runtime.NewRegistry(withOwnCapabilities{e.rt}, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: p})
	stop := e.runManager(all)
	e.stop = func() {
		stop()
		p.Close()
	}
	return p
}

// newInstance returns an Instance in a separate session. Berth deletes the Instance one second after it stops.
func (p *observedTmux) newInstance(name string, args ...string) *v1alpha1.Instance {
	i := newInstance(name, args...)
	i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Socket: p.socket, Session: name}}
	i.Spec.TTLSecondsAfterStopped = ptr.To[int32](1)
	return i
}

// sessions returns the names of all sessions.
func (p *observedTmux) sessions(ctx context.Context, g Gomega) []string {
	found, err := p.Sessions(ctx, p.socket)
	g.Expect(err).NotTo(HaveOccurred())
	names := []string{}
	for _, session := range found {
		names = append(names, strings.TrimSpace(session.Name))
	}
	return names
}
