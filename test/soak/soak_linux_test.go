// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
)

const (
	clients  = 10
	duration = time.Minute
	// seed makes each client draw the same operations in every run. The order of operations of different clients still differs between runs.
	seed = 7
	// ownSessions and ownContainers are the numbers of sessions and containers that Berth starts. foreignSessions and foreignContainers are the numbers of
	// those that are started without Berth and then discovered. Altogether there are 50.
	ownSessions, foreignSessions, ownContainers, foreignContainers = 30, 8, 9, 3
)

func TestSoak_RandomOperationsForOneMinute(t *testing.T) {
	need.Programs(t, "tmux")
	w := newWorld(t)
	w.startForeignContainers(t)
	for _, namespace := range []string{metav1.NamespaceDefault, otherNamespace} {
		w.Expect(w.api.Create(t.Context(), w.discovery(namespace))).To(Succeed())
	}
	done := w.runClients(t)
	t.Logf("%d operations in %v: %v", sum(done), duration, done)
	for _, name := range []string{"create", "delete", "restart", "stop", "start", "touch", "discover", "session"} {
		w.Expect(done[name]).To(BeNumerically(">", 5), name)
	}

	w.Eventually(func(g Gomega) { w.expectSpecifiedState(t.Context(), g) }).Should(Succeed())
	foreign := w.describeForeign(t.Context(), w)
	w.deleteAll(t)
	w.Eventually(func(g Gomega) { g.Expect(w.describeForeign(t.Context(), g)).To(Equal(foreign)) }).Should(Succeed(), "foreign sessions and containers must not change")
	// A Docker Engine may complete a start after Berth stopped waiting for it. The collector of orphans removes such a container.
	w.Eventually(func() ([]facts.Incarnation, error) { return w.runtimes.List(t.Context()) }).Should(BeEmpty(), "nothing of Berth may remain")
}

// runClients runs all clients for a minute and counts their operations.
func (w *world) runClients(t *testing.T) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var mu sync.Mutex
	done, failures := map[string]int{}, []string{}
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // reproducible by design
			for ctx.Err() == nil {
				what, err := w.operation(t.Context(), random) // not ctx, so that the end of the minute does not interrupt an operation
				mu.Lock()
				done[what]++
				if err != nil {
					failures = append(failures, what+": "+err.Error())
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond): // limits the rate of a client
				}
			}
		})
	}
	working.Wait()
	w.Expect(failures).To(BeEmpty())
	return done
}

// operation performs one random operation. It returns no error if an object already exists or no longer exists, because other clients create and delete
// objects, too.
func (w *world) operation(ctx context.Context, random *rand.Rand) (what string, err error) {
	token := strconv.Itoa(random.Int())
	switch random.IntN(12) {
	case 0:
		return "discover", w.patch(ctx, w.discovery([]string{metav1.NamespaceDefault, otherNamespace}[random.IntN(2)]), `{"spec":{"refreshToken":"`+token+`"}}`)
	case 1:
		w.toggleForeignSession(random.IntN(foreignSessions), random.IntN(2) == 0)
		return "session", nil
	}
	i := w.ownInstance(random.IntN(w.ownCount()))
	switch random.IntN(8) {
	case 0:
		return "delete", ignoreNotFound(w.api.Delete(ctx, i))
	case 1, 2:
		err := w.api.Create(ctx, i)
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return "create", err
	case 3:
		return "stop", w.patch(ctx, i, `{"spec":{"state":"Stopped"}}`)
	case 4, 5:
		return "start", w.patch(ctx, i, `{"spec":{"state":"Running"}}`)
	case 6:
		return "restart", w.patch(ctx, i, `{"spec":{"restartToken":"`+token+`"}}`)
	}
	if err := w.api.Get(ctx, kube.ObjectKeyFromObject(i), i); err == nil {
		if backends, err := w.runtimes.Find(ctx, i.UID); err == nil {
			_ = backends[0].Capabilities().Terminals.Type(ctx, i.UID, runtime.Keystrokes{Text: "activity\n"}) // ignore an error: the Instance may have no terminal now
		}
	}
	return "touch", nil
}

func ignoreNotFound(err error) error { return kube.IgnoreNotFound(err) }

func (w *world) patch(ctx context.Context, object kube.Object, text string) error {
	return ignoreNotFound(w.api.Patch(ctx, object, kube.RawPatch(types.MergePatchType, []byte(text))))
}

// ownCount is the maximum number of Instances that Berth starts itself.
func (w *world) ownCount() int {
	if w.engine == nil {
		return ownSessions
	}
	return ownSessions + ownContainers
}

// ownInstance returns the Instance with number n of those that Berth starts itself. Every third Instance has a TTL of 0, so Berth deletes it as soon as it has
// stopped.
func (w *world) ownInstance(n int) *v1alpha1.Instance {
	i := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("own-%d", n)}}
	if n < ownSessions {
		i.Spec.Process.Command = []string{workload, "terminal"}
		i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: i.Name, Socket: w.socket}}
	} else {
		i.Spec.Process.Command = []string{"/workload", "terminal"}
		i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerRuntime{Image: image}}
	}
	if n%3 == 0 {
		i.Spec.TTLSecondsAfterStopped = new(int32)
	}
	return i
}

// workload is the path of the program that runs in the sessions.
var workload string

// discovery returns an InstanceDiscovery of the foreign sessions and containers. The test creates one in each of the two namespaces.
func (w *world) discovery(namespace string) *v1alpha1.InstanceDiscovery {
	d := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "foreign"}}
	d.Spec.IntervalSeconds = new(int32)
	*d.Spec.IntervalSeconds = 5
	d.Spec.Template.TTLSecondsAfterStopped = new(int32)
	d.Spec.Sources = []v1alpha1.DiscoverySource{
		{Name: "sessions", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Socket: w.socket, Prefix: "claude-"}},
	}
	if w.engine != nil {
		labels := map[string]v1alpha1.LabelText{"soak": "foreign"}
		d.Spec.Sources = append(d.Spec.Sources,
			v1alpha1.DiscoverySource{Name: "containers", Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerSource{MatchLabels: labels}})
	}
	return d
}

// toggleForeignSession creates or kills a session without Berth. It ignores errors, because the session may already exist or no longer exist.
func (w *world) toggleForeignSession(n int, there bool) {
	name := fmt.Sprintf("claude-%d", n)
	if there {
		_, _ = w.tmux("new-session", "-d", "-s", name, "--", workload, "terminal")
	} else {
		_, _ = w.tmux("kill-session", "-t", "="+name)
	}
}

// startForeignContainers starts containers without Berth.
func (w *world) startForeignContainers(t *testing.T) {
	t.Helper()
	workload = conformance.Workload(t)
	if w.engine == nil {
		return
	}
	for n := range foreignContainers {
		made, err := w.engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:       fmt.Sprintf("claude-%d", n), // also the name of a session: both must be discovered
			Config:     &container.Config{Image: image, Cmd: []string{"sleep"}, Labels: map[string]string{"soak": "foreign"}},
			HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		w.Expect(err).NotTo(HaveOccurred())
		_, err = w.engine.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
		w.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() {
			_, err := w.engine.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
			w.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func sum(counts map[string]int) (all int) {
	for _, n := range slices.Collect(maps.Values(counts)) {
		all += n
	}
	return all
}
