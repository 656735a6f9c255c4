// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/test/need"
)

const (
	// crashes is how many times a process is killed in a round.
	crashes = 20
	// crashPause is how long a program runs before it is killed. By then, the work that its start caused must be finished.
	crashPause = 100 * time.Millisecond
)

// TestCrash_TimeToRunning measures the time from SIGKILL until the restarted program of an Instance and of a DevServer reports that it runs, and compares it
// with pm2.
func TestCrash_TimeToRunning(t *testing.T) {
	g := NewWithT(t)
	startManager(t, stateDirectory(t), 0)
	namespace := newNamespace(t)
	ours := listen(t)
	instance := newInstance(namespace, "crashing", workloadPath, "report", ours.path)
	g.Expect(k8s.Create(t.Context(), instance)).To(Succeed())
	ourPID, _ := ours.next(t)
	served := listen(t)
	server := newDevServer(namespace, "crashing", workloadPath, "report-and-serve", served.path)
	g.Expect(k8s.Create(t.Context(), server)).To(Succeed())
	servedPID, _ := served.next(t)

	pm2 := installPM2(t)
	var theirs *startReports
	theirPID := 0
	if pm2 != nil {
		theirs = listen(t)
		pm2.start(t, theirs.path)
		theirPID, _ = theirs.next(t)
	}
	var ratios, times, slowest, servedRatios, servedTimes, theirTimes, writes, excesses []float64
	for range rounds {
		write := median(writeTimes(t, namespace))
		took := crashTimes(t, ours, &ourPID, func() { resetFailures(t, instance) })
		times, slowest = append(times, median(took)), append(slowest, percentile(took, 99))
		servedTook := crashTimes(t, served, &servedPID, func() { resetFailures(t, server) })
		servedTimes, servedRatios = append(servedTimes, median(servedTook)), append(servedRatios, median(servedTook)/median(took))
		if pm2 != nil {
			their := median(crashTimes(t, theirs, &theirPID, func() {}))
			theirTimes, ratios = append(theirTimes, their), append(ratios, median(took)/their)
			excesses = append(excesses, median(took)-3*their-4*write)
		}
		writes = append(writes, write)
	}
	addLimitedFigure("crash to running again: p50", median(times), 10, " ms")
	addFigure("crash to running again: DevServer, p50", "%.1f ms", median(servedTimes))
	addFigure("crash to running again: DevServer / Instance, p50", "%.2f×", median(servedRatios))
	addFigure("one status write: p50", "%.1f ms", median(writes))
	addFigure("crash to running again: p50 without that write", "%.1f ms", median(times)-median(writes))
	addFigure("crash to running again: slowest of a round", "%.1f ms", median(slowest))
	if pm2 != nil {
		addFigure("crash to running again: pm2, p50", "%.1f ms", median(theirTimes))
		addLimitedFigure("crash to running again / pm2, p50", median(ratios), 1, "×")
		// pm2 writes no record. Berth writes the status before a start, unless the start is a pre-start (see lifecycle.Step). On a busy machine this write
		// takes most of the time. Therefore the limit is based on both pm2 and the time of a write.
		g.Expect(median(excesses)).To(BeNumerically("<=", 0), "slower than three times pm2 and four writes, in milliseconds")
	}
	for _, object := range []process.Object{instance, server} {
		status := object.GetProcessStatus()
		g.Eventually(func(g Gomega) { // the manager writes the status after the start
			g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(status.Incarnation).To(BeEquivalentTo(rounds*crashes + 1))
		}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
		g.Expect(ptr.Deref(status.Breaker, v1alpha1.BreakerStatus{}).State).To(Equal(v1alpha1.BreakerClosed))
	}
}

// writeTimes measures single status writes to an object at rest. Berth waits for one such write before a start, unless the start is a pre-start.
func writeTimes(t *testing.T, namespace string) (times []float64) {
	t.Helper()
	g := NewWithT(t)
	stopped := newInstance(namespace, "", "sleep", "infinity")
	stopped.GenerateName, stopped.Spec.State = "stopped-", v1alpha1.StateStopped
	g.Expect(k8s.Create(t.Context(), stopped)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(stopped), stopped)).To(Succeed())
		g.Expect(meta.FindStatusCondition(stopped.Status.Conditions, v1alpha1.ConditionReady)).To(HaveField("Reason", v1alpha1.ReasonStopped))
	}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
	for i := range 20 {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"attachCommand":"%d"}}`, i))
		began := time.Now()
		g.Expect(k8s.Status().Patch(t.Context(), stopped, patch)).To(Succeed())
		times = append(times, milliseconds(time.Since(began)))
	}
	return times
}

// resetFailures resets the failure count of the object, so that the next restart is immediate. From the second consecutive failure on, Berth waits at
// least one second before a restart.
func resetFailures(t *testing.T, object process.Object) {
	t.Helper()
	g := NewWithT(t)
	token := strconv.FormatInt(time.Now().UnixNano(), 10)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"resetToken":%q}}`, token))
	g.Expect(k8s.Patch(t.Context(), object, patch)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		g.Expect(object.GetProcessStatus().ObservedResetToken).To(Equal(token))
	}).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Succeed())
}

// crashTimes kills a process repeatedly and returns, for each kill, the time until the next process reported that it runs. It calls prepare before each
// kill.
func crashTimes(t *testing.T, from *startReports, pid *int, prepare func()) (times []float64) {
	t.Helper()
	for range crashes {
		prepare()
		pollOnce(crashPause)
		began := time.Now()
		if err := syscall.Kill(*pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill %d: %v", *pid, err)
		}
		next, at := from.next(t)
		*pid = next
		times = append(times, milliseconds(at.Sub(began)))
	}
	return times
}

// startReports is a socket on which programs report that they run.
type startReports struct {
	path string
	conn *net.UnixConn
}

func listen(t *testing.T) *startReports {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "berth-bench-")
	g.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(dir, "reports")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_ = conn.Close()
		_ = os.RemoveAll(dir)
	})
	return &startReports{path: path, conn: conn}
}

// next waits for a program to report that it runs.
func (r *startReports) next(t *testing.T) (pid int, at time.Time) {
	t.Helper()
	buf := make([]byte, 32)
	_ = r.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := r.conn.Read(buf)
	at = time.Now()
	if err == nil {
		pid, err = strconv.Atoi(string(buf[:n]))
	}
	if err != nil {
		t.Fatalf("wait for the program to run: %v", err)
	}
	return pid, at
}

// pm2 is the supervisor pm2 with a separate state directory. Berth is compared with it.
type pm2 struct {
	program, home string
}

// installPM2 installs pm2 into a cache directory. If the installation fails, installPM2 prints the reason and returns nil.
func installPM2(t *testing.T) *pm2 {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "berth-bench", "pm2-7")
	program := filepath.Join(dir, "node_modules", ".bin", "pm2")
	if err := need.Missing("node", "npm"); err != nil {
		fmt.Println("    Skip the comparison with pm2:", err)
		need.Without(t, err)
		return nil
	}
	if _, err := os.Stat(program); err != nil {
		if err := npmInstall(t.Context(), dir, "pm2@7"); err != nil {
			fmt.Println("    Skip the comparison with pm2:", err)
			return nil
		}
	}
	home, err := os.MkdirTemp("", "berth-bench-pm2-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	p := &pm2{program: program, home: home}
	t.Cleanup(func() {
		if out, err := p.run(backgroundContext, "kill"); err != nil {
			t.Errorf("stop pm2: %v\n%s", err, out)
		}
		_ = os.RemoveAll(home)
	})
	return p
}

func npmInstall(ctx context.Context, dir, what string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", what).CombinedOutput()
	if err != nil {
		return fmt.Errorf("npm install %s: %w\n%s", what, err, out)
	}
	return nil
}

// start makes pm2 keep a program running, with unlimited restarts.
func (p *pm2) start(t *testing.T, socket string) {
	t.Helper()
	out, err := p.run(t.Context(), "start", workloadPath, "--name", "crashing", "--interpreter", "none",
		"--max-restarts", "1000000", "--", "report", socket)
	if err != nil {
		t.Fatalf("start pm2: %v\n%s", err, out)
	}
}

func (p *pm2) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Env = append(os.Environ(), "PM2_HOME="+p.home, "PM2_DISABLE_VERSION_CHECK=true")
	// The daemon of pm2 inherits the output streams. Use a file, because a pipe would make Wait block until the daemon exits.
	file, err := os.CreateTemp(p.home, "out-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	out, _ := os.ReadFile(file.Name())
	return out, err
}
