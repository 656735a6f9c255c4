// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/procstat"
)

const (
	// keptRuns is the number of finished runs that the API server keeps, about as many as a busy Berth creates in an hour.
	keptRuns = 600
	// minSettleTime and settleTime bound the wait until unused memory is returned. berth-apiserver returns memory every two minutes, and etcd removes old revisions
	// after two to three minutes.
	minSettleTime, settleTime = time.Minute, 5 * time.Minute
	// usedMemory is the limit of the resident memory of berth up and its control plane, in MiB.
	usedMemory = 250
)

// TestUp_MemoryAndRestAfterRuns measures the resident memory of berth up and of its control plane at rest, after 600 runs, which are kept. It also measures the
// share of a core that both use at rest.
func TestUp_MemoryAndRestAfterRuns(t *testing.T) {
	g := NewWithT(t)
	up, api := startUp(t)
	memory := func() (own, plane float64) {
		a, b := usage(t, up)
		return float64(a.Memory) / (1 << 20), float64(b.Memory) / (1 << 20)
	}
	own, plane := memory()
	addFigure("berth up and its control plane, fresh: resident memory", "%.0f + %.0f MiB", own, plane)

	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "true"}}
	strategy.Spec.Process.Command = []string{"/bin/true"}
	strategy.Spec.HistoryLimit = ptr.To[int32](keptRuns)
	g.Expect(api.Create(t.Context(), strategy)).To(Succeed())
	inParallel(t, keptRuns, creators, func(i int) error { return api.Create(t.Context(), newRun("default", i)) })
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
		g.Expect(strategy.Status.Totals.Succeeded).To(BeNumerically("==", keptRuns))
	}).WithTimeout(patience).WithPolling(time.Second).Should(Succeed())

	most := 0.0
	for began := time.Now(); ; pollOnce(5 * time.Second) {
		own, plane = memory()
		most = max(most, own+plane)
		if took := time.Since(began); took > settleTime || took > minSettleTime && own+plane <= usedMemory {
			break
		}
	}
	addFigure("berth up and its control plane, after 600 runs: resident memory", "%.0f + %.0f MiB, at most %.0f MiB", own, plane, most)
	expectAtMost(t, "berth up and its control plane, after 600 runs: resident memory", own+plane, usedMemory, 1.1, " MiB")

	ownBefore, planeBefore := usage(t, up)
	from := time.Now()
	pollOnce(restWindow)
	ownAfter, planeAfter := usage(t, up)
	share := 100 * float64(ownAfter.CPU+planeAfter.CPU-ownBefore.CPU-planeBefore.CPU) / float64(time.Since(from))
	expectAtMost(t, "berth up and its control plane, at rest after 600 runs: share of a core", share, 1, 3, " %")
}

// startUp starts berth up with a new state directory, and stops it at the end of the test. It returns its PID and a client of its API server.
func startUp(t *testing.T) (pid int, api client.Client) {
	t.Helper()
	g := NewWithT(t)
	state := stateDirectory(t)
	bin, err := filepath.Abs(filepath.Join("..", "..", "bin"))
	g.Expect(err).NotTo(HaveOccurred())
	command := exec.Command(filepath.Join(bin, "berth"), "up", "--hide-objects", "--state-dir", state, "--assets", bin)
	command.Stderr = os.Stderr
	g.Expect(command.Start()).To(Succeed(), "make build builds berth")
	leftovers.addManager(command.Process)
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGINT)
		select {
		case err := <-ended:
			g.Expect(err).NotTo(HaveOccurred(), "berth up")
		case <-time.After(patience):
			_ = command.Process.Kill()
			t.Error("berth up did not exit after SIGINT")
		}
	})
	g.Eventually(func() error {
		config, err := clientcmd.BuildConfigFromFlags("", controlplane.KubeconfigPath(state))
		if err != nil {
			return err
		}
		config.QPS = -1
		if api, err = client.New(config, client.Options{Scheme: manager.Scheme()}); err != nil {
			return err
		}
		return errors.Join(api.List(t.Context(), &v1alpha1.StrategyList{}), api.List(t.Context(), &v1alpha1.StrategyRunList{}))
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
	return command.Process.Pid, api
}

// usage returns the resident memory and the CPU time of berth up and of its control plane.
func usage(t *testing.T, up int) (own, plane procstat.Stat) {
	t.Helper()
	own, err := procstat.Read(up)
	if err != nil {
		t.Fatal(err)
	}
	if plane, err = procstat.Read(childNamed(t, up, "berth-apiserver")); err != nil {
		t.Fatal(err)
	}
	return own, plane
}

// childNamed returns the PID of the child of a process with this name.
func childNamed(t *testing.T, parent int, name string) int {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the process has exited
		}
		if strings.HasPrefix(string(data), "Name:\t"+name+"\n") && strings.Contains(string(data), "\nPPid:\t"+strconv.Itoa(parent)+"\n") {
			return int(sumField(t, data, "Pid"))
		}
	}
	t.Fatalf("process %d has no child named %s", parent, name)
	return 0
}
