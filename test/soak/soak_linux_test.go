// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
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
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

const (
	clients = 10
	minute  = time.Minute
	// seed makes each client draw the same operations in every run. The order of operations of different clients still differs between runs.
	seed = 7
	// The numbers of sessions and containers that Berth starts, and of those that are started without Berth and discovered: 50 altogether.
	ownSessions, foreignSessions, ownContainers, foreignContainers = 30, 8, 9, 3
)

func TestAMinute(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil && os.Getenv("CI") == "" {
		t.Skip("this needs tmux: ", err)
	}
	w := newWorld(t)
	w.foreignContainers(t)
	for _, namespace := range []string{metav1.NamespaceDefault, other} {
		w.Expect(w.api.Create(t.Context(), w.discovery(namespace))).To(Succeed())
	}
	done := w.everything(t)
	t.Logf("%d operations in %v: %v", sum(done), minute, done)
	for _, name := range []string{"create", "delete", "restart", "stop", "start", "touch", "discover", "session"} {
		w.Expect(done[name]).To(BeNumerically(">", 5), name)
	}

	w.Eventually(func(g Gomega) { w.isAsTheSpecsSay(t.Context(), g) }).Should(Succeed())
	foreign := w.foreign(t.Context(), w)
	w.deleteAll(t)
	w.Eventually(func(g Gomega) { g.Expect(w.foreign(t.Context(), g)).To(Equal(foreign)) }).Should(Succeed(), "foreign sessions and containers must not change")
	// A Docker Engine may complete a start after Berth stopped waiting for it. The collector of orphans removes such a container.
	w.Eventually(func() ([]facts.Incarnation, error) { return w.all.List(t.Context()) }).Should(BeEmpty(), "nothing of Berth may remain")
}

// everything runs all clients for a minute and counts their operations.
func (w *world) everything(t *testing.T) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), minute)
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
		return "discover", w.patch(ctx, w.discovery([]string{metav1.NamespaceDefault, other}[random.IntN(2)]), `{"spec":{"refreshToken":"`+token+`"}}`)
	case 1:
		w.foreignSession(random.IntN(foreignSessions), random.IntN(2) == 0)
		return "session", nil
	}
	i := w.own(random.IntN(w.owned()))
	switch random.IntN(8) {
	case 0:
		return "delete", gone(w.api.Delete(ctx, i))
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
		if backend, err := w.all.Find(ctx, i.UID); err == nil {
			_ = backend.Capabilities().Terminals.Type(ctx, i.UID, []byte("activity\n")) // ignore an error: the Instance may have no terminal now
		}
	}
	return "touch", nil
}

func gone(err error) error { return kube.IgnoreNotFound(err) }

func (w *world) patch(ctx context.Context, object kube.Object, text string) error {
	return gone(w.api.Patch(ctx, object, kube.RawPatch(types.MergePatchType, []byte(text))))
}

// owned is the maximum number of Instances that Berth starts itself.
func (w *world) owned() int {
	if w.engine == nil {
		return ownSessions
	}
	return ownSessions + ownContainers
}

// own returns the Instance with number n of those that Berth starts itself. Berth deletes every third of them as soon as it has stopped.
func (w *world) own(n int) *v1alpha1.Instance {
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
		labels := map[string]v1alpha1.LabelText{"minute": "foreign"}
		d.Spec.Sources = append(d.Spec.Sources,
			v1alpha1.DiscoverySource{Name: "containers", Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerSource{MatchLabels: labels}})
	}
	return d
}

// foreignSession creates or kills a session without Berth. It ignores errors, because the session may already exist or no longer exist.
func (w *world) foreignSession(n int, there bool) {
	name := fmt.Sprintf("claude-%d", n)
	if there {
		_, _ = w.tmux("new-session", "-d", "-s", name, "--", workload, "terminal")
	} else {
		_, _ = w.tmux("kill-session", "-t", "="+name)
	}
}

// foreignContainers starts containers without Berth.
func (w *world) foreignContainers(t *testing.T) {
	t.Helper()
	workload = conformance.Workload(t)
	if w.engine == nil {
		return
	}
	for n := range foreignContainers {
		made, err := w.engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:       fmt.Sprintf("claude-%d", n), // also the name of a session: both must be discovered
			Config:     &container.Config{Image: image, Cmd: []string{"sleep"}, Labels: map[string]string{"minute": "foreign"}},
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
