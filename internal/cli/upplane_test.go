// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// TestUp_SurvivesKilledControlPlane kills the control plane. berth up must continue with the same objects and processes, and serve new objects.
func TestUp_SurvivesKilledControlPlane(t *testing.T) {
	g := NewWithT(t)
	fakeRuntime := fake.New(t.Context(), clock.RealClock{})
	state := t.TempDir()
	f := newFixture()
	f.app.newRuntime = persistent(fakeRuntime)
	end := startUp(t, f, "--state-dir", state, "--assets", assets(t))
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("export KUBECONFIG="), f.err.String)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(state, "kubeconfig"))
	g.Expect(err).NotTo(HaveOccurred())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())

	first := createReadyInstance(t, g, f, api, "first")
	for _, name := range []string{"second", "third"} {
		pid := pidOfControlPlane(g, state)
		g.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		g.Eventually(func() int { return pidOfControlPlane(g, state) }, time.Minute, 20*time.Millisecond).ShouldNot(Equal(pid), f.err.String)
		createReadyInstance(t, g, f, api, name)
	}
	again := &v1alpha1.Instance{}
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(first), again)).To(Succeed())
	g.Expect(again.UID).To(Equal(first.UID))
	g.Expect(again.Status.Process).To(Equal(first.Status.Process), "the same process")
	g.Expect(fakeRuntime.Count(first.UID, fake.Start)).To(Equal(1))
	g.Expect(end()).To(BeZero(), f.err.String())
	g.Expect(fakeRuntime.Live(first.UID)).To(BeEmpty(), "Ctrl-C still stops the processes")
	g.Expect(fakeRuntime.Violations()).To(BeEmpty())
}

// killer writes the messages of berth up to the next writer, and kills the control plane when a message contains the next of its texts.
type killer struct {
	io.Writer
	g     Gomega
	state string
	at    []string
}

func (k *killer) Write(line []byte) (int, error) {
	if len(k.at) > 0 && strings.Contains(string(line), k.at[0]) {
		k.at = k.at[1:]
		k.g.Expect(syscall.Kill(pidOfControlPlane(k.g, k.state), syscall.SIGKILL)).To(Succeed())
	}
	return k.Writer.Write(line)
}

// TestUp_SurvivesControlPlaneKilledDuringStart kills the control plane before its API is ready, as soon as it is ready, and once more after its restart.
func TestUp_SurvivesControlPlaneKilledDuringStart(t *testing.T) {
	g := NewWithT(t)
	fakeRuntime := fake.New(t.Context(), clock.RealClock{})
	state := t.TempDir()
	f := newFixture()
	f.app.newRuntime = persistent(fakeRuntime)
	f.app.err = &killer{Writer: f.err, g: g, state: state, at: []string{"started berth-apiserver", "the API server at", "restarted berth-apiserver"}}
	end := startUp(t, f, "--state-dir", state, "--assets", assets(t))
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("export KUBECONFIG="), f.err.String)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(state, "kubeconfig"))
	g.Expect(err).NotTo(HaveOccurred())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	createReadyInstance(t, g, f, api, "first")
	g.Expect(f.err.String()).To(MatchRegexp("(?s)(exited unexpectedly.*){3}"))
	g.Expect(end()).To(BeZero(), f.err.String())
	g.Expect(fakeRuntime.Violations()).To(BeEmpty())
}

// createReadyInstance creates an Instance and waits until it is ready. It retries, because a new API server rejects objects until its policies are ready.
func createReadyInstance(t *testing.T, g Gomega, f *fixture, api client.Client, name string) *v1alpha1.Instance {
	t.Helper()
	instance := &v1alpha1.Instance{}
	instance.Namespace, instance.Name, instance.Spec.Process.Command = "default", name, []string{"sh"}
	g.Eventually(func() error { return api.Create(t.Context(), instance) }, time.Minute, 100*time.Millisecond).Should(Succeed(), f.err.String)
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(instance.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}, 3*time.Minute, 100*time.Millisecond).Should(Succeed(), f.err.String)
	return instance
}

// pidOfControlPlane reads the PID of berth-apiserver from its pid file.
func pidOfControlPlane(g Gomega, state string) int {
	data, err := os.ReadFile(filepath.Join(state, "pids", "berth-apiserver.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var recorded struct{ PID int }
	g.Expect(json.Unmarshal(data, &recorded)).To(Succeed())
	return recorded.PID
}
