// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	hostileNamespace   = "hostile"
	bystanderNamespace = "bystander"
	// startTimeout is how long the manager may take after its start until it serves metrics.
	startTimeout = time.Minute
	root         = "../.."
)

// unprivilegedUID is the ID of the user that runs the manager and its programs if root runs TestHostileProcesses_DoNotAffectOtherObjects. This user has no
// other processes.
const unprivilegedUID = 54321

// world consists of a control plane, a manager in a separate process, and the directory of the manager.
type world struct {
	*testing.T
	user    uint32
	api     client.WithWatch
	plane   *testenv.Environment
	config  *rest.Config
	manager *exec.Cmd
	metrics string
	dir     string
}

func newWorld(t *testing.T, user uint32) *world {
	t.Helper()
	w := newPlane(t)
	w.user = user
	w.makeDir()
	w.startManager()
	return w
}

// newPlane returns a world without a manager.
func newPlane(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, plane: testenv.New(root)}
	config, err := w.plane.Start()
	w.must(err, "start an API server")
	t.Cleanup(func() { w.must(w.plane.Stop(), "stop the control plane") })
	scheme := runtime.NewScheme()
	w.must(errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)), "create a scheme")
	config.QPS = -1
	w.config = config
	w.api, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	w.must(err, "create a client")
	for _, name := range []string{hostileNamespace, bystanderNamespace} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"berth.dev/allow-runtime": "Host"}}}
		w.must(w.api.Create(t.Context(), namespace), "create a namespace")
	}
	return w
}

func (w *world) must(err error, doing string) {
	w.Helper()
	if err != nil {
		w.Fatalf("%s: %v", doing, err)
	}
}

// makeDir creates the directory of the manager at a path that the manager's user can access.
func (w *world) makeDir() {
	w.Helper()
	dir, err := os.MkdirTemp("", "berth-hostile-")
	w.must(err, "create a directory")
	w.dir = dir
	w.Cleanup(func() { w.must(os.RemoveAll(dir), "remove the directory of the manager") })
	if w.user != 0 {
		w.must(os.Chown(dir, int(w.user), int(w.user)), "change the owner of the directory")
	}
}

// startManager builds berth and runs berth manager until the end of the test.
func (w *world) startManager() {
	w.Helper()
	w.build()
	w.runManager()
	w.Cleanup(w.stopManager)
}

// build builds berth, and writes a kubeconfig that the manager's user can read.
func (w *world) build() {
	w.Helper()
	build := exec.CommandContext(w.Context(), "go", "build", "-trimpath", "-o", w.dir+string(filepath.Separator), "./cmd/berth", "./cmd/berth-shim", "./cmd/berth-lsp", "./test/hostile/adversary")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		w.Fatalf("build berth: %v\n%s", err, out)
	}
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	w.must(os.WriteFile(kubeconfig, w.plane.Kubeconfig(), 0o600), "write a kubeconfig")
	if w.user != 0 {
		w.must(os.Chown(kubeconfig, int(w.user), int(w.user)), "change the owner of the kubeconfig")
		w.must(os.Chmod(w.dir, 0o711), "make the directory accessible") //nolint:gosec // the directory contains the programs
	}
}

// runManager runs berth manager with the host runtime. The environment of the manager hides the tmux sessions and the Docker Engine of the user who runs the
// test.
func (w *world) runManager() {
	w.Helper()
	w.metrics = freeAddress(w.T)
	log, err := os.OpenFile(filepath.Join(w.dir, "manager.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	w.must(err, "create a log")
	defer func() { _ = log.Close() }() // the manager has a descriptor of its own
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	w.manager = exec.Command(filepath.Join(w.dir, "berth"), "manager", "--kubeconfig", kubeconfig,
		"--state-dir", filepath.Join(w.dir, "state"), "--metrics-bind-address", w.metrics)
	w.manager.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + w.dir, "TMUX_TMPDIR=" + w.dir, "DOCKER_HOST=unix://" + filepath.Join(w.dir, "no-docker.sock")}
	w.manager.Stdout, w.manager.Stderr = log, log
	if w.user != 0 {
		w.manager.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: w.user, Gid: w.user}}
	}
	w.must(w.manager.Start(), "start the manager")
	ctx, cancel := context.WithTimeout(w.Context(), startTimeout)
	defer cancel()
	for {
		if _, err := w.scrape(ctx); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.Fatal("the manager does not serve metrics; see the log")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stopManager stops the manager, and kills it if it does not exit. It logs the end of its log if the test has failed.
func (w *world) stopManager() {
	_ = w.manager.Process.Signal(syscall.SIGTERM)
	killed := time.AfterFunc(maxDeletionTime, func() { _ = w.manager.Process.Kill() })
	_ = w.manager.Wait()
	killed.Stop()
	if w.Failed() {
		text, _ := os.ReadFile(filepath.Join(w.dir, "manager.log"))
		w.Logf("end of the manager log:\n%s", text[max(0, len(text)-8<<10):])
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// scrape reads the metrics of the manager.
func (w *world) scrape(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.metrics+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return string(text), err
}

// slowReconciles returns the number of reconciles that took longer than a second, and the total number of reconciles.
func (w *world) slowReconciles() (slow, all int) {
	w.Helper()
	text, err := w.scrape(w.Context())
	w.must(err, "read the metrics")
	within := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		count, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "controller_runtime_reconcile_time_seconds_count"):
			all += int(count)
		case strings.HasPrefix(name, "controller_runtime_reconcile_time_seconds_bucket") && strings.Contains(name, `le="1"`):
			within += int(count)
		}
	}
	return all - within, all
}

// peakMemory returns the largest resident size of the manager so far, in bytes.
func (w *world) peakMemory() int {
	w.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", w.manager.Process.Pid))
	w.must(err, "read the memory of the manager")
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "VmHWM:" {
			kilobytes, err := strconv.Atoi(fields[1])
			w.must(err, "read the memory of the manager")
			return kilobytes << 10
		}
	}
	w.Fatal("the kernel does not report VmHWM")
	return 0
}
