// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod runs incarnations as Pods of a Kubernetes cluster, one Pod each.
//
// The cluster handles scheduling, images, volumes, limits and the loss of nodes. The manager stores no state of its own: the labels of a Pod contain the UID
// and the incarnation, and a finalizer keeps the Pod until its exit status was recorded. A Pod counts as ended only if its kubelet has reported the end, or if
// the Pod never had a node. A Pod on a node that does not respond is Unknown, and until that changes no other incarnation is started.
package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/keymutex"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
)

var _ runtime.Runtime = (*Runtime)(nil)

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: r, Terminals: r, Results: r, KeepsOrigin: true, SlowStart: true}
}

// Labels, annotations and names that identify Pods of Berth.
const (
	// LabelUID and LabelIncarnation identify the object and the incarnation of a Pod; Secrets have them too.
	LabelUID         = "berth.dev/uid"
	LabelIncarnation = "berth.dev/incarnation"
	// LabelManagedBy is the common Kubernetes label; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "berth"
	// annotationName is the display name of the object.
	annotationName = "berth.dev/name"
	// annotationOrigin contains the facts.Origin of the incarnation, as JSON. Pods that were created before it existed do not have it.
	annotationOrigin = "berth.dev/origin"
	// annotationFailed contains why Berth deleted a Pod whose program could never run: a reason and a message, as JSON.
	annotationFailed = "berth.dev/start-failed"
	// annotationLeft marks a Pod that Berth deleted because its program had ended while other containers were still running.
	annotationLeft = "berth.dev/program-ended"
	// finalizer keeps a Pod until its exit was recorded.
	finalizer = "berth.dev/exit"
	// Container is the name of the container in which the program runs.
	Container = "main"
)

const (
	// syncPatience is how long a call waits for the first list of Pods. Only calls soon after the start of a manager have to wait.
	syncPatience = 10 * time.Second
	// actTimeout bounds the API requests of one call.
	actTimeout = time.Minute
)

// Options configure a Runtime.
type Options struct {
	// Client is the client for the API server. It is required.
	Client kubernetes.Interface
	// Config is used to attach to the terminals of Pods, with the same permissions as Client. Nil: typing is not supported, and terminal output is known only from
	// the log.
	Config *rest.Config
	// Namespaces limits the Runtime to the Pods of these namespaces. Empty: all.
	Namespaces []string
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

// Runtime runs incarnations as Pods. Create one with New.
type Runtime struct {
	runtime.NoTerminals

	client kubernetes.Interface
	config *rest.Config // nil: terminals are not accessible
	views  views
	deaf   sync.Map // the time of the last timeout by node, for nodes that did not respond
	log    logr.Logger
	events *eventqueue.Queue
	listed []cache.InformerSynced // report whether the first list of Pods has arrived, for each namespace, or for all
	store  *store
	locks  keymutex.KeyMutex // serializes the calls for one UID
	tasks  *background.Tasks

	mu      sync.Mutex
	refused map[types.UID]facts.Incarnation                 // the last start of a UID, if it failed before its Pod was created
	doubts  workqueue.TypedRateLimitingInterface[types.UID] // UIDs whose Pods may have to be deleted
}

// New starts watching the Pods in the background. It does not wait for the API server.
func New(options Options) (*Runtime, error) {
	if options.Client == nil {
		return nil, errors.New("pod runtime: no client is set")
	}
	r := &Runtime{client: options.Client, config: options.Config, log: options.Logger, events: eventqueue.New(), store: newStore(),
		refused: map[types.UID]facts.Incarnation{}, doubts: newDoubts(), locks: keymutex.NewHashed(64), tasks: background.New()}
	r.views.of, r.views.most = map[types.UID]*view{}, mostListened
	if len(options.Namespaces) == 0 {
		options.Namespaces = []string{corev1.NamespaceAll}
	}
	for _, namespace := range options.Namespaces {
		if err := r.watch(namespace); err != nil {
			return nil, errors.Join(fmt.Errorf("pod runtime: %w", err), r.Close())
		}
	}
	r.tasks.Go(func() { r.events.Run(r.tasks.Lifetime().Done()) })
	r.tasks.Go(r.giveUpLoop)
	return r, nil
}

// Close releases all resources and leaves the Pods running.
func (r *Runtime) Close() error {
	r.doubts.ShutDown()
	r.tasks.Close()
	return nil
}

// SetNamespace implements runtime.Runtime.
func (r *Runtime) SetNamespace(uid types.UID, namespace string) { r.store.settle(uid, namespace) }

// Events implements runtime.Runtime.
func (r *Runtime) Events() <-chan types.UID { return r.events.C() }

// Announce sends a UID on Events, for a backend that runs its processes here.
func (r *Runtime) Announce(uid types.UID) { r.events.Add(uid) }

// acquire waits for the first list of Pods and locks the UID. The returned context ends after actTimeout. The caller calls release when it has finished.
func (r *Runtime) acquire(ctx context.Context, uid types.UID) (acting context.Context, release func(), err error) {
	if uid == "" || len(validation.IsValidLabelValue(string(uid))) > 0 {
		return nil, nil, fmt.Errorf("invalid UID %q of an object: use at most 63 letters, digits, dots, dashes and underscores, "+
			"with a letter or digit at both ends", uid)
	}
	if err := r.synced(ctx); err != nil {
		return nil, nil, err
	}
	r.locks.LockKey(string(uid))
	acting, cancel := context.WithTimeout(ctx, actTimeout)
	return acting, func() {
		cancel()
		_ = r.locks.UnlockKey(string(uid))
	}, nil
}

// newest returns the newest Pod of an object. It returns runtime.ErrNotFound if there is none.
func (r *Runtime) newest(ctx context.Context, uid types.UID) (*corev1.Pod, error) {
	if err := r.synced(ctx); err != nil {
		return nil, err
	}
	newest := r.store.newest(uid)
	if newest == nil {
		return nil, runtime.ErrNotFound
	}
	return newest, nil
}

// running does the same as newest, and also returns runtime.ErrNotFound if the program of that Pod is not running.
func (r *Runtime) running(ctx context.Context, uid types.UID) (*corev1.Pod, error) {
	newest, err := r.newest(ctx, uid)
	if err == nil && !runs(newest) {
		err = runtime.ErrNotFound
	}
	return newest, err
}

// synced waits for the first list of Pods. Before that, a missing Pod would look like a deleted one. It waits at most syncPatience.
func (r *Runtime) synced(ctx context.Context) error {
	if r.tasks.Lifetime().Err() != nil {
		return errors.New("the pod runtime is closed")
	}
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), r.listed...) {
		return errors.New("the list of Pods is not available yet: the API server does not respond, or the manager has no permission to list Pods")
	}
	return nil
}

// refusedStart returns the last start of a UID, if that start failed before its Pod was created.
func (r *Runtime) refusedStart(uid types.UID) (facts.Incarnation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is, there := r.refused[uid]
	return is, there
}

func (r *Runtime) setRefused(uid types.UID, is *facts.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is == nil {
		delete(r.refused, uid)
		return
	}
	r.refused[uid] = *is
}

// told stores a Pod from a response of the API server, because the watch delivers it only later.
func (r *Runtime) told(p *corev1.Pod) {
	if uid, ok := r.store.put(p, false); ok {
		r.events.Add(uid)
	}
}
