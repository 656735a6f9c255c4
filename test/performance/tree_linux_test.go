// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	treeSize = 100
	// trees is the number of process trees that are killed in a round.
	trees = 5
)

// TestKill_ProcessTreeTime compares the time to kill a tree of 100 processes through the runtime with the time to kill it by writing cgroup.kill.
func TestKill_ProcessTreeTime(t *testing.T) {
	g := NewWithT(t)
	state := stateDirectory(t)
	h, err := host.New(host.Options{StateDir: state, ShimPath: shimPath})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(h.Close()).To(Succeed()) }()
	if h.Containment() != shim.Cgroup {
		fmt.Println("    Skip the comparison: there is no writable cgroup.")
		return
	}
	var ratios, ours, hands, exits []float64
	for round := range rounds {
		var killed, exited, byHand []float64
		for i := range trees {
			uid := types.UID(fmt.Sprintf("tree-%d-%d", round, i))
			gone, over := killTreeWithBerth(t, h, state, uid)
			killed, exited = append(killed, milliseconds(gone)), append(exited, milliseconds(over))
			byHand = append(byHand, milliseconds(killTreeByHand(t, filepath.Dir(filepath.Dir(recordOf(t, state).Cgroup)))))
			g.Expect(h.Forget(t.Context(), uid)).To(Succeed())
		}
		ours, hands, exits = append(ours, median(killed)), append(hands, median(byHand)), append(exits, median(exited))
		ratios = append(ratios, median(killed)/median(byHand))
	}
	addFigure("kill of 100 processes: by hand, until all are gone", "%.1f ms", median(hands))
	addFigure("kill of 100 processes: until all are gone", "%.1f ms", median(ours))
	addFigure("kill of 100 processes: until the exit is recorded", "%.1f ms", median(exits))
	expectAtMost(t, "kill of 100 processes / by hand", median(ratios), 1.3, 2.5, "×")
}

// recordOf returns the only process record in a state directory.
func recordOf(t *testing.T, state string) (record shim.Record) {
	t.Helper()
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(state, "run", "*", shim.RecordFile))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paths).To(HaveLen(1))
	_, err = statedir.ReadJSON(paths[0], &record)
	g.Expect(err).NotTo(HaveOccurred())
	return record
}

// killTreeWithBerth starts a tree and kills it through the runtime. It returns the time until all processes are gone, and the time until the runtime reports
// the exit.
func killTreeWithBerth(t *testing.T, h *host.Host, state string, uid types.UID) (gone, over time.Duration) {
	t.Helper()
	g := NewWithT(t)
	process := runtime.Process{UID: uid, Incarnation: 1, Name: string(uid), Command: []string{workloadPath, "tree", strconv.Itoa(treeSize)}}
	g.Expect(h.Start(t.Context(), process)).To(Succeed())
	cgroup := recordOf(t, state).Cgroup
	g.Eventually(func() int { return memberCount(cgroup) }).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Equal(treeSize))
	began := time.Now()
	g.Expect(h.Kill(t.Context(), uid, 1)).To(Succeed())
	gone = waitUntilEmpty(t, cgroup).Sub(began)
	g.Eventually(func(g Gomega) {
		found, err := h.Observe(t.Context(), uid)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
		g.Expect(found[0].Phase).To(Equal(facts.Exited))
		over = time.Since(began)
	}).WithTimeout(patience).WithPolling(time.Millisecond).Should(Succeed())
	return gone, over
}

func memberCount(cgroup string) int {
	data, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return 0
	}
	return bytes.Count(data, []byte{'\n'})
}

// killTreeByHand starts the same tree in a separate cgroup and kills it by writing cgroup.kill. It returns the time until all processes are gone.
func killTreeByHand(t *testing.T, parent string) time.Duration {
	t.Helper()
	g := NewWithT(t)
	cgroup, err := os.MkdirTemp(parent, ".by-hand-")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(os.Remove(cgroup)).To(Succeed()) }()
	fd, err := unix.Open(cgroup, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(fd) }()
	cmd := exec.Command(workloadPath, "tree", strconv.Itoa(treeSize))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd, Setsid: true}
	g.Expect(cmd.Start()).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	g.Eventually(func() int { return memberCount(cgroup) }).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Equal(treeSize))
	began := time.Now()
	g.Expect(os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0)).To(Succeed())
	took := waitUntilEmpty(t, cgroup).Sub(began)
	<-done
	return took
}

// waitUntilEmpty waits until a cgroup contains no process, and returns the time at which it found the cgroup empty.
func waitUntilEmpty(t *testing.T, cgroup string) time.Time {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		data, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
		if err != nil || bytes.Contains(data, []byte("populated 0")) {
			return time.Now()
		}
		pollOnce(500 * time.Microsecond)
	}
	t.Fatalf("processes are still in %s", cgroup)
	return time.Time{}
}

// pollOnce waits for d, for example between two polls.
func pollOnce(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
