// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod runs incarnations as Pods of a Kubernetes cluster, one Pod each.
//
// The cluster is the engine: scheduling, images, volumes, limits and the loss of nodes are its own. Nothing is kept here: a Pod carries the UID and
// the incarnation in its labels, and a finalizer of ours keeps it, with the way that it ended, until that was of use. A Pod is only taken for ended
// when its kubelet has said so, or when it never had one; what is on a node that does not answer is Unknown, and nothing is started beside it.
package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/notify"
)

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Results: r}
}

// What Pods of ours are known by.
const (
	// LabelUID and LabelIncarnation say which incarnation of which object a Pod is; Secrets have them too.
	LabelUID         = "berth.dev/uid"
	LabelIncarnation = "berth.dev/incarnation"
	// LabelManagedBy is the common one; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "berth"
	// AnnotationName is what people know the object by.
	AnnotationName = "berth.dev/name"
	// AnnotationFailed holds why a Pod was given up that never ran: a reason and a message, as JSON.
	AnnotationFailed = "berth.dev/start-failed"
	// AnnotationLeft marks a Pod that was ended because its program had.
	AnnotationLeft = "berth.dev/program-ended"
	// Finalizer keeps a Pod until its end was of use.
	Finalizer = "berth.dev/exit"
	// Container is the container that the program runs in.
	Container = "main"
)

const (
	// syncPatience is how long a call waits until the Pods are known, which takes that long after the start of a manager only.
	syncPatience = 10 * time.Second
	// actTimeout bounds what a call asks the API server for.
	actTimeout = time.Minute
)

// Options say where Pods run.
type Options struct {
	// Client is the way to the API server.
	Client kubernetes.Interface
	// Config reaches the terminals of Pods, with the rights of Client. Nil: nobody types into them, and of what they show the log is all that is known.
	Config *rest.Config
	// Terminals is how many terminals are listened to at once. 0: 512.
	Terminals int
	// Namespaces limit it to the Pods of these namespaces. None: all.
	Namespaces []string
	// Logger is told what the manager should know; the zero value drops it.
	Logger logr.Logger
}

// Runtime holds Pods. Make one with New.
type Runtime struct {
	runtime.NoTerminals

	client  kubernetes.Interface
	config  *rest.Config // nil: terminals are not reached
	views   views
	deaf    sync.Map // nodes that did not answer, and since when
	log     logr.Logger
	events  *notify.Notifier
	watched []cache.SharedIndexInformer // one for each namespace, or one for all
	listed  func() bool                 // reports whether the first list of Pods has arrived
	store   *store
	locks   [64]sync.Mutex // by UID: calls for one UID come one after another

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	loops  sync.WaitGroup
	once   sync.Once

	mu      sync.Mutex
	refused map[types.UID]refusal
	doubts  *notify.Notifier // what may have to be ended from here
}

// refusal is a start that nothing was made for.
type refusal struct {
	number int64
	name   string
	cause  *facts.StartError
}

// New follows the Pods in the background. It does not wait for the API server.
func New(options Options) (*Runtime, error) {
	if options.Client == nil {
		return nil, errors.New("pod runtime: no client was given")
	}
	r := &Runtime{client: options.Client, config: options.Config, log: options.Logger, events: notify.New(), store: newStore(),
		refused: map[types.UID]refusal{}, doubts: notify.New()}
	if r.log.GetSink() == nil {
		r.log = logr.Discard()
	}
	r.views.of, r.views.most = map[types.UID]*view{}, cmp.Or(options.Terminals, mostListened)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.watch(options.Namespaces); err != nil {
		r.cancel()
		return nil, fmt.Errorf("pod runtime: %w", err)
	}
	r.loops.Go(func() { r.events.Run(r.ctx.Done()) })
	for _, informer := range r.watched {
		r.loops.Go(func() { informer.RunWithContext(r.ctx) })
	}
	r.loops.Go(func() { r.doubts.Run(r.ctx.Done()) })
	r.loops.Go(r.giveUpLoop)
	return r, nil
}

// Run waits for the end of the context. Close afterwards: calls are still answered until then, so that workloads can be ended.
func (r *Runtime) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
	return nil
}

// Close lets go of everything and leaves the Pods alone.
func (r *Runtime) Close() error {
	r.once.Do(func() {
		r.cancel()
		r.views.close()
		r.loops.Wait()
	})
	return nil
}

// Belongs implements runtime.Namespaced.
func (r *Runtime) Belongs(uid types.UID, namespace string) { r.store.settle(uid, namespace) }

// Events implements runtime.Runtime.
func (r *Runtime) Events() <-chan types.UID { return r.events.C() }

var validUID = regexp.MustCompile(`^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)

// acquire makes calls for one UID come one after another, waits until the Pods are known, and bounds how long what follows may take.
func (r *Runtime) acquire(ctx context.Context, uid types.UID) (acting context.Context, release func(), err error) {
	if !validUID.MatchString(string(uid)) {
		return nil, nil, fmt.Errorf("%q cannot be the UID of a Pod: at most 63 letters, digits, dots, dashes and underscores", uid)
	}
	if err := r.synced(ctx); err != nil {
		return nil, nil, err
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	lock := &r.locks[hash.Sum32()%uint32(len(r.locks))]
	lock.Lock()
	acting, cancel := context.WithTimeout(ctx, actTimeout)
	return acting, func() {
		cancel()
		lock.Unlock()
	}, nil
}

// synced waits until what is there is known: before that, nothing there would look like nothing.
func (r *Runtime) synced(ctx context.Context) error {
	if r.ctx.Err() != nil {
		return errors.New("the pod runtime is closed")
	}
	if r.listed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), r.listed) {
		return errors.New("the Pods of the cluster are not known yet; the API server does not answer, or the manager may not list Pods")
	}
	return nil
}

// refusedStart gives the start that was refused last.
func (r *Runtime) refusedStart(uid types.UID) (refusal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is, there := r.refused[uid]
	return is, there
}

func (r *Runtime) setRefused(uid types.UID, is *refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is == nil {
		delete(r.refused, uid)
		return
	}
	r.refused[uid] = *is
}

// told keeps what the API server has answered, before the watch brings it.
func (r *Runtime) told(p *corev1.Pod) {
	if uid, ok := r.store.put(p, false); ok {
		r.events.Tell(uid)
	}
}
