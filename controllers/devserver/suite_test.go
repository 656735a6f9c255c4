// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// long is a timeout that only broken code reaches.
const long = 30 * time.Second

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// backend is a runtime that implements only the sockets and the output.
type backend struct {
	runtime.NoRuntime
	runtime.NoLogs
	runtime.NoInspection

	mu         sync.Mutex
	listeners  []runtime.Listener
	socketsErr error
	others     []runtime.Listener
	owners     map[int32]*runtime.PortOwner
	sharing    []runtime.PortOwner // further owners, of any port
	owned      int                 // calls of PortOwners
	log        *memoryLog
	// inspecting is called at the beginning of PortOwners, if it is set.
	inspecting func(port int32)
}

func (b *backend) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: b, Inspection: b}
}

func (b *backend) Listeners(context.Context, types.UID) (runtime.Sockets, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return runtime.Sockets{Own: b.listeners, Others: b.others}, b.socketsErr
}

// Exec fakes a command. The command succeeds if it runs beside an incarnation, its environment contains TOKEN=secret, and every
// other argument that begins with PORT= is also in its environment.
func (*backend) Exec(_ context.Context, p runtime.Process) (facts.Exit, error) {
	exit := facts.Exit{Known: true}
	if p.UID == "" || p.Incarnation == 0 || !slices.Contains(p.Env, "TOKEN=secret") ||
		slices.ContainsFunc(p.Command, func(word string) bool { return strings.HasPrefix(word, "PORT=") && !slices.Contains(p.Env, word) }) ||
		slices.Contains(p.Command, "PORT=$(PORT)") {
		exit.Code = 1
	}
	return exit, nil
}

func (b *backend) PortOwners(_ context.Context, port int32, _ ...uint64) ([]runtime.PortOwner, error) {
	if b.inspecting != nil {
		b.inspecting(port)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owned++
	owners := slices.Clone(b.sharing)
	if owner := b.owners[port]; owner != nil {
		owners = append(owners, *owner)
	}
	return owners, nil
}

func (b *backend) OpenLog(context.Context, types.UID) (runtime.Log, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log == nil {
		return nil, fmt.Errorf("open the log: %w", runtime.ErrNotFound)
	}
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	b.log.open++
	return b.log, nil
}

// share makes the owner listen at an address of a port, beside the processes of the server. It replaces the owners of earlier calls.
func (b *backend) share(address string, port int32, owner runtime.PortOwner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.others = []runtime.Listener{{Address: address, Port: port, Socket: owner.Socket}}
	b.sharing = []runtime.PortOwner{owner}
}

// listen sets the addresses on which the processes listen.
func (b *backend) listen(listeners ...runtime.Listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners = listeners
}

func listenerOn(address string, port int32) runtime.Listener {
	return runtime.Listener{Address: address, Port: port, PID: 1}
}

// memoryLog is a log in memory whose oldest part can be discarded.
type memoryLog struct {
	mu    sync.Mutex
	first int64
	open  int
	data  []byte
	more  chan struct{}
}

func newLog(text string) *memoryLog {
	return &memoryLog{data: []byte(text), more: make(chan struct{})}
}

func (l *memoryLog) append(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, text...)
	close(l.more)
	l.more = make(chan struct{})
}

func (l *memoryLog) discardBefore(first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = first
}

func (l *memoryLog) Bounds() (first, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, int64(len(l.data)), nil
}

func (l *memoryLog) ReadAt(p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.first {
		return 0, fmt.Errorf("read the log: %w", io.ErrUnexpectedEOF)
	}
	n := copy(p, l.data[min(offset, int64(len(l.data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (l *memoryLog) Wait(ctx context.Context, offset int64) error {
	l.mu.Lock()
	more, there := l.more, offset < int64(len(l.data))
	l.mu.Unlock()
	if there {
		return nil
	}
	select {
	case <-more:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *memoryLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	return nil
}

// openReaders returns the number of open readers.
func (l *memoryLog) openReaders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// fixture is a kind over a fake API server, with a fake backend and clock.
type fixture struct {
	*Kind
	g       Gomega
	backend *backend
	clock   *clocktesting.FakeClock
	store   client.Client
	inUse   map[int32]bool
	names   map[string][]netip.Addr // the records of the resolver
	others  map[string]bool         // addresses on which other programs accept connections
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := apiruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &fixture{
		g:       NewWithT(t),
		backend: &backend{owners: map[int32]*runtime.PortOwner{}},
		clock:   clocktesting.NewFakeClock(epoch),
		inUse:   map[int32]bool{},
		names:   map[string][]netip.Addr{"localhost": {loopback}, "127.0.0.1": {loopback}, "::1": {netip.IPv6Loopback()}},
		others:  map[string]bool{},
	}
	s.store = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.DevServer{}).WithIndex(&v1alpha1.DevServer{}, indexPort, byPort).Build()
	s.restartManager(t)
	return s
}

// restartManager simulates a restart of the manager: it replaces Kind with a new one that has no state in memory.
func (s *fixture) restartManager(t *testing.T) {
	t.Helper()
	if s.Kind != nil {
		s.stopManager()
	}
	kind, err := New(s.store, s.store, runtime.NewRegistry(s.backend, logr.Discard()), s.clock, Options{Ports: Range{First: 20000, Last: 20009}}, func(types.UID) {})
	if err != nil {
		t.Fatal(err)
	}
	kind.network = network{
		free:    func(port int32) bool { return !s.inUse[port] },
		answers: func(_ context.Context, address string) bool { return s.others[address] },
		resolve: func(_ context.Context, host string) []netip.Addr { return s.names[host] },
	}
	s.Kind = kind
	t.Cleanup(func() { stopKind(kind) })
}

func (s *fixture) stopManager() { stopKind(s.Kind) }

func (s *fixture) ctx() context.Context { return context.Background() }

// stopKind stops the probes and proxies of a kind and waits for them.
func stopKind(kind *Kind) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = kind.probes.Start(ctx)
	_ = kind.proxies.Start(ctx)
}

// server returns a DevServer created the given number of seconds after the epoch.
func server(name string, created int, change ...func(*v1alpha1.DevServer)) *v1alpha1.DevServer {
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1,
		CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(created) * time.Second)),
	}}
	dev.Spec.State = v1alpha1.StateRunning
	dev.Spec.Process.Command = []string{"serve"}
	for _, do := range change {
		do(dev)
	}
	return dev
}

func fixedPort(port int32) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Spec.Port = &port }
}

func assignedPort(port int32) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Status.Port = port }
}

func running(port int32) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) {
		dev.Status.Port, dev.Status.Incarnation, dev.Status.ObservedGeneration = port, 1, 1
		dev.Status.Process = &v1alpha1.ProcessReference{Incarnation: 1, PID: 1}
	}
}

func ended(reason string) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) {
		dev.Status.Incarnation, dev.Status.ObservedGeneration = 1, 1
		dev.Status.LastExit = &v1alpha1.ProcessExit{Incarnation: 1, Reason: reason}
	}
}

func stopped(dev *v1alpha1.DevServer) { dev.Spec.State = v1alpha1.StateStopped }

func deleted(dev *v1alpha1.DevServer) {
	now := metav1.NewTime(epoch)
	dev.DeletionTimestamp, dev.Finalizers = &now, []string{v1alpha1.FinalizerProcess}
}

// prepare prepares an object without a process.
func (s *fixture) prepare(dev *v1alpha1.DevServer) *process.StartSpec {
	return s.prepareRunning(dev, nil)
}

func (s *fixture) prepareRunning(dev *v1alpha1.DevServer, current *facts.Incarnation) *process.StartSpec {
	start := &process.StartSpec{}
	s.g.Expect(s.Prepare(context.Background(), dev, current, start)).To(Succeed())
	return start
}

// observe calls ObserveRunning for an incarnation that has just started.
func (s *fixture) observe(dev *v1alpha1.DevServer, number int64) (lifecycle.Observed, time.Duration) {
	var observed lifecycle.Observed
	retry, err := s.ObserveRunning(context.Background(), dev, incarnation(number), &observed)
	s.g.Expect(err).NotTo(HaveOccurred())
	return observed, retry
}

func incarnation(number int64) facts.Incarnation {
	return facts.Incarnation{Number: number, Phase: facts.Running, PID: 1, StartedAt: epoch}
}

// recordReady sets Ready in the status, as the reconcile loop does.
func recordReady(dev *v1alpha1.DevServer, observed lifecycle.Observed) {
	if observed.Ready != nil {
		setReady(dev, *observed.Ready)
	}
}

func setReady(dev *v1alpha1.DevServer, ready bool) {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	process.SetCondition(dev, epoch, v1alpha1.ConditionReady, status, "Test", "")
}

func condition(dev *v1alpha1.DevServer, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(dev.Status.Conditions, conditionType)
}
