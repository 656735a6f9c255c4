// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package minute

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
	// seed draws the same operations each time, whatever the order in which they arrive.
	seed = 7
	// The fifty: sessions and containers of Berth's own, and such as others make, which are to be found.
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
	w.Eventually(func(g Gomega) { g.Expect(w.foreign(t.Context(), g)).To(Equal(foreign)) }).Should(Succeed(), "what others made is left as it was")
	// An engine may finish a start whose answer nobody waited for any more; that is collected.
	w.Eventually(func() ([]facts.Incarnation, error) { return w.all.List(t.Context()) }).Should(BeEmpty(), "nothing of Berth's own is left")
}

// everything has all clients do something again and again for a minute, and counts what they did.
func (w *world) everything(t *testing.T) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), minute)
	defer cancel()
	var mu sync.Mutex
	done, failures := map[string]int{}, []string{}
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // the same each time, as wanted
			for ctx.Err() == nil {
				what, err := w.operation(t.Context(), random) // the last one is carried out whole
				mu.Lock()
				done[what]++
				if err != nil {
					failures = append(failures, what+": "+err.Error())
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond): // the pace of a client
				}
			}
		})
	}
	working.Wait()
	w.Expect(failures).To(BeEmpty())
	return done
}

// operation does one thing. That an object is there, or is not, is no failure: others do something to it too.
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
			_ = backend.Capabilities().Terminals.Type(ctx, i.UID, []byte("activity\n")) // it may have no terminal at this moment
		}
	}
	return "touch", nil
}

func gone(err error) error { return kube.IgnoreNotFound(err) }

func (w *world) patch(ctx context.Context, object kube.Object, text string) error {
	return gone(w.api.Patch(ctx, object, kube.RawPatch(types.MergePatchType, []byte(text))))
}

// owned is how many Instances of Berth's own there may be.
func (w *world) owned() int {
	if w.engine == nil {
		return ownSessions
	}
	return ownSessions + ownContainers
}

// own gives one of those Instances. Every third is cleaned up soon after it was stopped.
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

// workload is the program of the sessions.
var workload string

// discovery looks for what others made; so does another one in the other namespace.
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

// foreignSession makes a session, or ends one, as somebody does who knows nothing of Berth. It may be there already, or not any more.
func (w *world) foreignSession(n int, there bool) {
	name := fmt.Sprintf("claude-%d", n)
	if there {
		_, _ = w.tmux("new-session", "-d", "-s", name, "--", workload, "terminal")
	} else {
		_, _ = w.tmux("kill-session", "-t", "="+name)
	}
}

// foreignContainers starts containers that Berth knows nothing of.
func (w *world) foreignContainers(t *testing.T) {
	t.Helper()
	workload = conformance.Workload(t)
	if w.engine == nil {
		return
	}
	for n := range foreignContainers {
		made, err := w.engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:       fmt.Sprintf("claude-%d", n), // a session may have the same name
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
