// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/shim"
)

// patience bounds every wait. It is long because the machine may be slow.
const patience = 90 * time.Second

// world is the system under test.
type world struct {
	dir   string // value of CHAOS_DIR: contains the locks and the files written by workloads
	state string // state directory of the host runtime
	// workload and shim are the paths of programs that are built for this test run only. So every process that executes one of them belongs to the run.
	workload, shim string

	plane   *plane
	manager *managerChild
	api     client.Client
	ledger  *ledger
	journal *journal
	faults  []fault
	mounted bool
}

// newWorld creates and starts everything. Call discard afterwards, even after an error.
func newWorld(ctx context.Context, root string) (*world, error) {
	w := &world{
		dir: filepath.Join(root, "dir"), state: filepath.Join(root, "state"), ledger: newLedger(), journal: newJournal(),
		workload: filepath.Join(root, "bin", "workload"), shim: filepath.Join(root, "bin", "berth-shim"),
	}
	for _, dir := range []string{filepath.Join(w.dir, "locks"), w.state, filepath.Join(root, "bin")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return w, err
		}
	}
	program := filepath.Join(root, "bin", "manager")
	for path, source := range map[string]string{w.workload: "./workload", w.shim: "../../cmd/berth-shim", program: "./manager"} {
		// Build with the same flags as make, so that both use the same entries of the build cache.
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return w, fmt.Errorf("build %s: %w\n%s", source, err, out)
		}
	}
	w.mountSmallDisk()

	var err error
	planeDir := filepath.Join(root, "plane")
	if w.plane, err = startPlane(ctx, planeDir, filepath.Join("..", "..", "bin")); err != nil {
		return w, err
	}
	crds := envtest.CRDInstallOptions{Paths: []string{filepath.Join("..", "..", "config", "crd", "bases")}, ErrorIfPathMissing: true}
	if _, err := envtest.InstallCRDs(w.plane.config, crds); err != nil {
		return w, fmt.Errorf("install the kinds: %w", err)
	}
	if w.api, err = w.client(); err != nil {
		return w, err
	}
	w.manager = &managerChild{program: program, log: filepath.Join(root, "manager.log"), env: []string{
		"KUBECONFIG=" + controlplane.KubeconfigPath(planeDir), "CHAOS_STATE=" + w.state, "CHAOS_SHIM=" + w.shim,
	}}
	return w, w.manager.start()
}

func (w *world) client() (client.Client, error) {
	config := rest.CopyConfig(w.plane.config)
	config.QPS, config.Burst = 500, 1000
	return client.New(config, client.Options{Scheme: manager.Scheme()})
}

// cgroups returns the existing directories that contain the cgroups of this run's processes.
func (w *world) cgroups() []string {
	sum := sha256.Sum256([]byte(w.state))
	name := "berth-" + hex.EncodeToString(sum[:6])
	var found []string
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		own, _ := os.ReadFile("/proc/self/cgroup")
		for line := range strings.Lines(string(own)) {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
			for dir := path; ok; dir = filepath.Dir(dir) {
				candidate := filepath.Join(mount, dir, name)
				if info, err := os.Stat(candidate); err == nil && info.IsDir() {
					found = append(found, candidate)
				}
				ok = dir != "/" && dir != "."
			}
		}
	}
	return found
}

// traceDirs returns the directories that have one entry for each UID.
func (w *world) traceDirs() []string {
	return append(w.cgroups(), filepath.Join(w.state, "run"))
}

// shutDown deletes all objects and checks that nothing remains of them. Then it stops the manager and checks that no process and no cgroup remains.
func (w *world) shutDown(ctx context.Context) error {
	var ports []int32
	objects, err := w.objects(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if server, ok := object.(*v1alpha1.DevServer); ok && server.Status.Port != 0 {
			ports = append(ports, server.Status.Port)
		}
		w.ledger.deleting(object.GetUID())
		if err := client.IgnoreNotFound(w.api.Delete(ctx, object)); err != nil {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
		w.ledger.deleted(object.GetUID())
	}
	if err := w.waitUntilSettled(ctx, patience); err != nil {
		return fmt.Errorf("after the deletion of all objects: %w", err)
	}
	for _, port := range ports {
		err := eventually(ctx, patience, 100*time.Millisecond, func() error {
			listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
			if err != nil {
				return err
			}
			return listener.Close()
		})
		if err != nil {
			return fmt.Errorf("a port is still in use: %w", err)
		}
	}
	if err := errors.Join(w.manager.stop(patience), w.manager.checkNoPanic()); err != nil {
		return err
	}
	if left := w.cgroups(); len(left) > 0 {
		return fmt.Errorf("cgroups remain: %v", left)
	}
	if left, err := processesOf(w.workload, w.shim, w.manager.program); err != nil || len(left) > 0 {
		return fmt.Errorf("processes remain: %v: %w", left, err)
	}
	return w.checkNoOverlap()
}

// discard kills all processes, removes their cgroups, stops the control plane and unmounts the small file system, even after an earlier failure. The caller
// removes the directory.
func (w *world) discard() error {
	var errs []error
	if w.manager != nil {
		w.manager.discard()
	}
	// Kill the shims first, so that no process restarts. Processes that fork quickly need several rounds.
	for _, program := range []string{w.shim, w.workload} {
		err := eventually(context.Background(), patience, 10*time.Millisecond, func() error {
			left, err := processesOf(program)
			for _, p := range left {
				err = errors.Join(err, p.signal(9))
			}
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d processes remain", len(left))
			}
			return err
		})
		errs = append(errs, err)
	}
	for _, dir := range w.cgroups() {
		err := eventually(context.Background(), patience, 50*time.Millisecond, func() error { return shim.RemoveCgroup(dir) })
		errs = append(errs, err)
	}
	if w.plane != nil {
		errs = append(errs, w.plane.stop())
	}
	return errors.Join(append(errs, w.unmountSmallDisk())...)
}

// workloadStarts returns how many times a workload was started.
func (w *world) workloadStarts() int64 {
	info, err := os.Stat(filepath.Join(w.dir, "starts"))
	if err != nil {
		return 0
	}
	return info.Size()
}
