// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Two managers share a state directory with --leader-elect. The second waits, and takes over the same processes when the first is killed.
func TestStandby_TakesOverProcessesOfKilledManager(t *testing.T) {
	g := NewWithT(t)
	api, kubeconfig := startCluster(t)
	state, shim := t.TempDir(), buildShim(t)
	arguments := []string{"manager", "--kubeconfig", kubeconfig, "--state-dir", state, "--shim", shim, "--lsp", "/bin/true",
		"--leader-elect", "--leader-election-namespace=default", "--endpoint-bind-address=0"}
	first := startBerth(t, arguments...)
	before, after := sleepInstance("before"), sleepInstance("after")
	g.Expect(api.Create(t.Context(), before)).To(Succeed())
	awaitForbidden(t, g, api, before, first) // namespaces are checked by default
	permitHost(t, g, api, before.Namespace)
	awaitReady(t, g, api, before, first)

	second := startBerth(t, arguments...)
	t.Cleanup(func() {
		_ = first.Process.Kill()
		deleteInstances(g, api, before, after) // the second manager stops their processes
		_ = second.Process.Signal(syscall.SIGTERM)
	})
	g.Eventually(second.log.String, clusterTimeout).Should(And(ContainSubstring("Waiting until another manager releases the state directory"), ContainSubstring(fmt.Sprintf("process %d", first.Process.Pid))))
	_, err := openBackends(runtimeOptions{stateDir: state, shim: shim, lsp: "/bin/true"})
	g.Expect(err).To(MatchError(And(ContainSubstring(fmt.Sprintf("process %d", first.Process.Pid)), ContainSubstring("only one manager can use a state directory"))))

	g.Expect(first.Process.Kill()).To(Succeed())
	killed := time.Now()
	g.Expect(api.Create(t.Context(), after)).To(Succeed())
	awaitReady(t, g, api, after, second)
	t.Logf("the standby served a new object %v after the kill", time.Since(killed))
	process := before.Status.Process.DeepCopy()
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(before), before)).To(Succeed())
	g.Expect(before.Status.Process).To(Equal(process), "the process survives")
	g.Expect(before.Status.RestartCount).To(BeZero())
	g.Expect(syscall.Kill(int(process.PID), 0)).To(Succeed())
}

// TestManager_RefusesACopiedStateDirectory checks that a copy of a state directory, which has the name of the same host, starts no second process, and that the
// original directory and a moved one take over without a wait.
func TestManager_RefusesACopiedStateDirectory(t *testing.T) {
	g := NewWithT(t)
	api, kubeconfig := startCluster(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	state, copied, moved, shim := filepath.Join(root, "state"), filepath.Join(root, "copy"), filepath.Join(root, "moved"), buildShim(t)
	start := func(state string) *berthProcess {
		return startBerth(t, "manager", "--kubeconfig", kubeconfig, "--state-dir", state, "--shim", shim, "--lsp", "/bin/true", "--leader-election-namespace=default")
	}
	kill := func(b *berthProcess) {
		g.Expect(b.Process.Kill()).To(Succeed())
		_ = b.Wait()
	}
	permitHost(t, g, api, "default")
	before, after := sleepInstance("before"), sleepInstance("after")
	g.Expect(api.Create(t.Context(), before)).To(Succeed())
	original := start(state)
	awaitReady(t, g, api, before, original)
	process := before.Status.Process.DeepCopy()
	g.Expect(exec.Command("cp", "-a", state, copied).Run()).To(Succeed())

	for _, killed := range []bool{false, true} {
		if killed {
			kill(original)
		}
		second := start(copied)
		g.Expect(second.Wait()).NotTo(Succeed(), second.log.String)
		g.Expect(second.log.String()).To(And(ContainSubstring("another state directory has the name of this host"), ContainSubstring(fmt.Sprintf("%q of this manager is a copy of it", copied)),
			ContainSubstring(fmt.Sprintf("use %q, or an empty directory for another host", state))))
	}

	original = start(state)
	g.Expect(api.Create(t.Context(), after)).To(Succeed())
	awaitReady(t, g, api, after, original)
	g.Expect(original.log.String()).NotTo(ContainSubstring("Waiting"))
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(before), before)).To(Succeed())
	g.Expect(before.Status.Process).To(Equal(process), "the same process")
	g.Expect(before.Status.RestartCount).To(BeZero())
	deleteInstances(g, api, before, after)

	kill(original)
	g.Expect(os.Rename(state, moved)).To(Succeed())
	last, third := start(moved), sleepInstance("third")
	t.Cleanup(func() {
		deleteInstances(g, api, third)
		_ = last.Process.Signal(syscall.SIGTERM)
	})
	g.Expect(api.Create(t.Context(), third)).To(Succeed())
	awaitReady(t, g, api, third, last)
	g.Expect(last.log.String()).NotTo(ContainSubstring("Waiting"))
}

func sleepInstance(name string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	instance.Spec.Process.Command = []string{"sleep", "infinity"}
	return instance
}

func awaitReady(t *testing.T, g Gomega, api client.Client, instance *v1alpha1.Instance, by *berthProcess) {
	t.Helper()
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(instance.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}, clusterTimeout, 50*time.Millisecond).Should(Succeed(), by.log.String)
}

func awaitForbidden(t *testing.T, g Gomega, api client.Client, instance *v1alpha1.Instance, by *berthProcess) {
	t.Helper()
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
		stalled := meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionStalled)
		g.Expect(stalled).To(HaveValue(HaveField("Reason", v1alpha1.ReasonRuntimeForbidden)))
	}, clusterTimeout, 50*time.Millisecond).Should(Succeed(), by.log.String)
	g.Expect(instance.Status.Incarnation).To(BeZero())
}

// permitHost labels the namespace as an administrator does.
func permitHost(t *testing.T, g Gomega, api client.Client, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1alpha1.LabelAllowRuntime+`":"Host"}}}`))
	g.Expect(api.Patch(t.Context(), namespace, patch)).To(Succeed())
}

func deleteInstances(g Gomega, api client.Client, instances ...*v1alpha1.Instance) {
	for _, instance := range instances {
		g.Expect(client.IgnoreNotFound(api.Delete(context.Background(), instance))).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(api.Get(context.Background(), client.ObjectKeyFromObject(instance), instance))
		}, clusterTimeout, 50*time.Millisecond).Should(BeTrue())
	}
}

// berthProcess is the program berth in a separate process.
type berthProcess struct {
	*exec.Cmd
	log *output
}

func startBerth(t *testing.T, arguments ...string) *berthProcess {
	t.Helper()
	self, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	b := &berthProcess{Cmd: exec.Command(self), log: &output{}}
	b.Env = append(os.Environ(), berthVariable+"="+strings.Join(arguments, "\n"))
	b.Stdout, b.Stderr = b.log, b.log
	NewWithT(t).Expect(b.Start()).To(Succeed())
	t.Cleanup(func() { _ = b.Wait() })
	return b
}

func buildShim(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth-shim")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/berth-dev/berth/cmd/berth-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(out))
	return path
}
