// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/langserver"
)

// backend is the part of the host runtime that the rows use.
type backend interface {
	runtime.Runtime
	runtime.Inspection
	runtime.Logs
	Announce(uid types.UID)
}

// withOwnCapabilities makes Capabilities return the backend itself as Inspection and Logs, so that they include the faults. Without withOwnCapabilities,
// Capabilities would return those of the host runtime, which have no faults.
type withOwnCapabilities struct{ backend }

func (w withOwnCapabilities) Capabilities() runtime.Capabilities {
	can := w.backend.Capabilities()
	can.Inspection, can.Logs = w.backend, w.backend
	return can
}

// testEnv is the environment of one row: a namespace, a directory for its workloads, and a manager with its own host runtime.
type testEnv struct {
	namespace string
	dir       string
	stateDir  string
	shim      string
	// faults adds faults that come from outside Berth; rt is the runtime as the manager sees it.
	faults *faultInjector
	rt     backend

	host *host.Host
	// languages is the language server backend on top of rt.
	languages *langserver.Runtime
	stop      func()
	// abandoned are the PIDs of the shims that a manager has released. The managers of the rows run in the process of the suite, so these shims remain
	// children of the suite, which has to reap them.
	abandoned []int
	// stateDirs lists the state directory of each manager that was started. The directories differ only if the row or its fault needs several.
	stateDirs []string
}

var env *testEnv

var _ = BeforeEach(func(ctx SpecContext) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "race-"}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	env = &testEnv{namespace: namespace.Name, dir: GinkgoT().TempDir(), faults: &faultInjector{}}
	env.stateDir = filepath.Join(programs, namespace.Name)
	// Create a separate hard link to the shim, so that the row can remove the shim without affecting other rows.
	env.shim = filepath.Join(programs, namespace.Name+"-shim")
	Expect(os.Link(filepath.Join(programs, "berth-shim"), env.shim)).To(Succeed())
	DeferCleanup(env.cleanup)
	env.start()
})

var _ = AfterEach(func(ctx SpecContext) {
	if fault != nil || CurrentSpecReport().Failed() {
		return
	}
	env.faults.clearHooks()
	env.start()
	env.deleteObjects(ctx)
	expectNoOverlap()
	Expect(workloadPIDs("")).To(BeEmpty(), "no process without an object")
	Eventually(ctx, func(g Gomega) {
		env.reap()
		g.Expect(zombies()).To(BeEmpty(), "no child is left unreaped")
	}).Should(Succeed())
	env.stopManager()
	Expect(cgroups(env.stateDir)).To(BeEmpty(), "no cgroup is left")
	Expect(os.RemoveAll(env.stateDir)).To(Succeed())
})

// start starts a manager on the state directory, unless one is running.
func (e *testEnv) start() {
	GinkgoHelper()
	if e.stop != nil {
		return
	}
	dir := e.stateDir
	if fault != nil && fault.losesState {
		dir = fmt.Sprintf("%s-%d", dir, len(e.stateDirs))
	}
	e.stateDirs = append(e.stateDirs, dir)
	var err error
	e.host, err = host.New(host.Options{StateDir: dir, ShimPath: e.shim})
	Expect(err).NotTo(HaveOccurred())
	e.faults.setBackend(e.host)
	e.rt = fault.runtime(e.faults)
	e.languages, err = langserver.New(e.rt, langserver.Options{Dir: filepath.Join(dir, "lsp"), Program: filepath.Join(programs, "berth-lsp")})
	Expect(err).NotTo(HaveOccurred())
	e.stop = e.runManager(runtime.NewRegistry(withOwnCapabilities{e.rt}, logr.Discard()))
}

// runManager runs a manager until the returned function is called.
func (e *testEnv) runManager(runtimes *runtime.Registry) func() {
	GinkgoHelper()
	mgr, err := manager.New(fault.managers(config), manager.Options{
		Runtimes: runtimes, LanguageServers: languageFaults{fault.languages(e.languages), e}, LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience,
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() {
		GinkgoHelper()
		cancel()
		if fault == nil {
			Eventually(ended).Should(Receive(BeNil()), "the manager exits on request")
			return
		}
		select {
		case <-ended: //nolint:errcheck // with a fault, the manager may return any error
		case <-time.After(3 * time.Second): // with a fault, the manager may never return
		}
	}
}

// stopManager stops the manager and releases the processes, which keep running.
func (e *testEnv) stopManager() {
	GinkgoHelper()
	if e.stop == nil {
		return
	}
	e.stop()
	e.stop = nil
	for _, p := range suiteProcesses() {
		if p.isShim() {
			e.abandoned = append(e.abandoned, p.PID)
		}
	}
	e.languages.Close()
	Expect(e.host.Close()).To(Succeed())
}

// reap reaps the released shims that have exited.
func (e *testEnv) reap() {
	for _, pid := range zombies() {
		if slices.Contains(e.abandoned, pid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// deleteObjects deletes all objects and waits until no trace of the objects is left.
func (e *testEnv) deleteObjects(ctx context.Context) {
	GinkgoHelper()
	for _, object := range []client.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.DevServer{}, &v1alpha1.Instance{}, &v1alpha1.LanguageServer{}, &v1alpha1.StrategyRun{}, &v1alpha1.Strategy{}} {
		Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(e.namespace))).To(Succeed())
	}
	Eventually(ctx, func(g Gomega) {
		var runs v1alpha1.StrategyRunList
		g.Expect(k8s.List(ctx, &runs, client.InNamespace(e.namespace))).To(Succeed())
		g.Expect(runs.Items).To(BeEmpty())
		g.Expect(allObjects(ctx, g)).To(BeEmpty())
		g.Expect(runtimeTraces(e.stateDir)).To(BeEmpty())
	}).Should(Succeed())
}

// cleanup removes everything that AfterEach leaves after a row that failed or that ran with a fault.
func (e *testEnv) cleanup() {
	e.faults.clearHooks()
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
	gone := func() bool {
		processes := suiteProcesses()
		for _, p := range processes {
			killProcess(p.Process)
		}
		return len(processes) == 0
	}
	Eventually(gone).Should(BeTrue())
	Expect(removeObjects(k8s, e.namespace)).To(Succeed())
	if e.host != nil {
		e.languages.Close()
		_ = e.host.Close()
	}
	for _, dir := range e.stateDirs {
		for _, group := range cgroups(dir) {
			removeCgroup(group)
		}
	}
}

// removeObjects forcibly removes all objects of a namespace, or of all namespaces if namespace is "", so that no manager of a later row acts on these
// objects.
func removeObjects(c client.Client, namespace string) error {
	ctx := context.Background()
	for kind := range c.Scheme().KnownTypes(v1alpha1.GroupVersion) {
		made, err := c.Scheme().New(v1alpha1.GroupVersion.WithKind(kind))
		list, ok := made.(client.ObjectList)
		if err != nil || !ok {
			continue // not the list type of a kind
		}
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list remaining objects: %s: %w", kind, err)
		}
		err = meta.EachListItem(list, func(item apiruntime.Object) error {
			object := item.(client.Object) // the lists contain nothing else
			release := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			return errors.Join(client.IgnoreNotFound(c.Patch(ctx, object, release)), client.IgnoreNotFound(c.Delete(ctx, object)))
		})
		if err != nil {
			return fmt.Errorf("remove remaining objects: %s: %w", kind, err)
		}
	}
	return nil
}

// cgroups returns the top cgroups of the installation that uses a state directory.
func cgroups(stateDir string) []string {
	sum := sha256.Sum256([]byte(stateDir))
	install := "berth-" + hex.EncodeToString(sum[:6])
	var all []string
	for _, mount := range cgroupMounts() {
		_ = filepath.WalkDir(mount, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil || !entry.IsDir():
				return nil //nolint:nilerr // a cgroup that disappears meanwhile is not ours
			case entry.Name() == install:
				all = append(all, path)
				return fs.SkipDir
			case strings.HasPrefix(entry.Name(), "berth-"):
				return fs.SkipDir
			}
			return nil
		})
	}
	return all
}

func cgroupMounts() []string {
	data, err := os.ReadFile("/proc/self/mounts")
	Expect(err).NotTo(HaveOccurred())
	var mounts []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			mounts = append(mounts, fields[1])
		}
	}
	return mounts
}

// removeCgroup removes a cgroup that contains no processes, and all cgroups below it, the deepest first.
func removeCgroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroup(filepath.Join(dir, entry.Name()))
		}
	}
	_ = os.Remove(dir)
}

// faultInjector is the runtime with faults that come from outside Berth. The rows set the faults.
type faultInjector struct {
	backend

	mu        sync.Mutex
	onStart   func(p runtime.Process, start func() error) error
	onKill    func(uid types.UID, kill func() error) error
	onObserve func(uid types.UID)
}

func (w *faultInjector) setBackend(b backend) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backend = b
}

// setHooks calls change, which sets the faults to inject, and holds the lock during the call.
func (w *faultInjector) setHooks(change func(w *faultInjector)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

// clearHooks removes all faults.
func (w *faultInjector) clearHooks() {
	w.setHooks(func(w *faultInjector) { w.onStart, w.onKill, w.onObserve = nil, nil, nil })
}

func (w *faultInjector) hooks() (b backend, onStart func(runtime.Process, func() error) error, onKill func(types.UID, func() error) error, onObserve func(types.UID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backend, w.onStart, w.onKill, w.onObserve
}

func (w *faultInjector) Start(ctx context.Context, p runtime.Process) error {
	b, onStart, _, _ := w.hooks()
	start := func() error { return b.Start(context.WithoutCancel(ctx), p) }
	if onStart == nil {
		return start()
	}
	return onStart(p, start)
}

func (w *faultInjector) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	b, _, onKill, _ := w.hooks()
	kill := func() error { return b.Kill(ctx, uid, incarnation) }
	if onKill == nil {
		return kill()
	}
	return onKill(uid, kill)
}

func (w *faultInjector) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	b, _, _, onObserve := w.hooks()
	if onObserve != nil {
		onObserve(uid)
	}
	return b.Observe(ctx, uid)
}
