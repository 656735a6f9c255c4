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
}

// whole makes Capabilities return the Inspection and the Logs of the backend with its faults. Without whole these would be the ones of the host
// runtime, without the faults.
type whole struct{ backend }

func (w whole) Capabilities() runtime.Capabilities {
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
	// A link for this row, so that the row can remove its shim.
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
	env.empty(ctx)
	neverTwo()
	Expect(workloads("")).To(BeEmpty(), "no process without an object")
	Eventually(ctx, func(g Gomega) {
		env.reap()
		g.Expect(zombies()).To(BeEmpty(), "no child is left unreaped")
	}).Should(Succeed())
	env.stopManager()
	Expect(cgroups(env.stateDir)).To(BeEmpty(), "no cgroup is left")
	Expect(os.RemoveAll(env.stateDir)).To(Succeed())
})

// start starts a manager on the state directory, unless one is running.
func (y *testEnv) start() {
	GinkgoHelper()
	if y.stop != nil {
		return
	}
	dir := y.stateDir
	if fault != nil && fault.forgets {
		dir = fmt.Sprintf("%s-%d", dir, len(y.stateDirs))
	}
	y.stateDirs = append(y.stateDirs, dir)
	var err error
	y.host, err = host.New(host.Options{StateDir: dir, ShimPath: y.shim})
	Expect(err).NotTo(HaveOccurred())
	y.faults.under(y.host)
	y.rt = fault.runtime(y.faults)
	y.languages, err = langserver.New(y.rt, langserver.Options{Dir: filepath.Join(dir, "lsp"), Program: filepath.Join(programs, "berth-lsp")})
	Expect(err).NotTo(HaveOccurred())
	y.stop = y.manage(runtime.NewRegistry(whole{y.rt}, logr.Discard()))
}

// manage runs a manager until the returned function is called.
func (y *testEnv) manage(runtimes *runtime.Registry) func() {
	GinkgoHelper()
	mgr, err := manager.New(fault.managers(config), manager.Options{
		Runtimes: runtimes, LanguageServers: languageFaults{fault.languages(y.languages), y}, LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience,
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
		case <-ended: //nolint:errcheck // with a fault it may return any error
		case <-time.After(3 * time.Second): // it may never return
		}
	}
}

// stopManager stops the manager and releases the processes, which keep running.
func (y *testEnv) stopManager() {
	GinkgoHelper()
	if y.stop == nil {
		return
	}
	y.stop()
	y.stop = nil
	for _, p := range ours() {
		if p.shim() {
			y.abandoned = append(y.abandoned, p.PID)
		}
	}
	y.languages.Close()
	Expect(y.host.Close()).To(Succeed())
}

// reap reaps the released shims that have exited.
func (y *testEnv) reap() {
	for _, pid := range zombies() {
		if slices.Contains(y.abandoned, pid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// empty deletes all objects and waits until no trace of the objects is left.
func (y *testEnv) empty(ctx context.Context) {
	GinkgoHelper()
	for _, object := range []client.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.DevServer{}, &v1alpha1.Instance{}, &v1alpha1.LanguageServer{}, &v1alpha1.StrategyRun{}, &v1alpha1.Strategy{}} {
		Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(y.namespace))).To(Succeed())
	}
	Eventually(ctx, func(g Gomega) {
		var runs v1alpha1.StrategyRunList
		g.Expect(k8s.List(ctx, &runs, client.InNamespace(y.namespace))).To(Succeed())
		g.Expect(runs.Items).To(BeEmpty())
		g.Expect(everything(ctx, g)).To(BeEmpty())
		g.Expect(traces(y.stateDir)).To(BeEmpty())
	}).Should(Succeed())
}

// cleanup removes everything that AfterEach leaves after a row that failed or that ran with a fault.
func (y *testEnv) cleanup() {
	y.faults.clearHooks()
	if y.stop != nil {
		y.stop()
		y.stop = nil
	}
	gone := func() bool {
		processes := ours()
		for _, p := range processes {
			end(p.Process)
		}
		return len(processes) == 0
	}
	Eventually(gone).Should(BeTrue())
	Expect(disown(k8s, y.namespace)).To(Succeed())
	if y.host != nil {
		y.languages.Close()
		_ = y.host.Close()
	}
	for _, dir := range y.stateDirs {
		for _, group := range cgroups(dir) {
			removeCgroup(group)
		}
	}
}

// disown forcibly removes all objects of a namespace, or of all namespaces if namespace is "", so that no manager of a later row acts on these
// objects.
func disown(c client.Client, namespace string) error {
	ctx := context.Background()
	for kind := range c.Scheme().KnownTypes(v1alpha1.GroupVersion) {
		made, err := c.Scheme().New(v1alpha1.GroupVersion.WithKind(kind))
		list, is := made.(client.ObjectList)
		if err != nil || !is {
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

	mu       sync.Mutex
	starting func(p runtime.Process, start func() error) error
	killing  func(uid types.UID, kill func() error) error
	looking  func(uid types.UID)
}

func (w *faultInjector) under(b backend) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backend = b
}

// setHooks sets the faults from now on.
func (w *faultInjector) setHooks(change func(w *faultInjector)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

// clearHooks removes all faults.
func (w *faultInjector) clearHooks() {
	w.setHooks(func(w *faultInjector) { w.starting, w.killing, w.looking = nil, nil, nil })
}

func (w *faultInjector) now() (b backend, starting func(runtime.Process, func() error) error, killing func(types.UID, func() error) error, looking func(types.UID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backend, w.starting, w.killing, w.looking
}

func (w *faultInjector) Start(ctx context.Context, p runtime.Process) error {
	b, starting, _, _ := w.now()
	start := func() error { return b.Start(context.WithoutCancel(ctx), p) }
	if starting == nil {
		return start()
	}
	return starting(p, start)
}

func (w *faultInjector) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	b, _, killing, _ := w.now()
	kill := func() error { return b.Kill(ctx, uid, incarnation) }
	if killing == nil {
		return kill()
	}
	return killing(uid, kill)
}

func (w *faultInjector) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	b, _, _, looking := w.now()
	if looking != nil {
		looking(uid)
	}
	return b.Observe(ctx, uid)
}
