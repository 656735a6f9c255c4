// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

const (
	// PolicyConfigMap is the name of the ConfigMap with the parameters of the admission policies.
	PolicyConfigMap = "berth-policy"
	// runtimesKey is the key in that ConfigMap whose value lists the permitted runtimes, one per line. The key runtimes.NAMESPACE replaces that value for
	// one namespace.
	runtimesKey = "runtimes"
)

// Permission reports which namespaces may run programs on this machine. It reads what the admission policy berth-runtimes reads: the label
// berth.dev/allow-runtime of the namespace, and the ConfigMap berth-policy. The admission policy is evaluated only when an object changes; Permission
// is checked at each start.
type Permission struct {
	// Cache reads from the cache of the manager, and Live from the API server.
	Cache, Live client.Reader
	// Namespace is the namespace of the ConfigMap berth-policy.
	Namespace string
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=berth-system,resources=configmaps,resourceNames=berth-policy,verbs=get;list;watch

// forbidden returns why the runtime of the object is not permitted in its namespace, or nil if it is. It permits Pods, which the cluster itself
// controls.
func (r *Reconciler) forbidden(ctx context.Context, object Object) (*lifecycle.Blocked, error) {
	kind := r.machineRuntime(object)
	if kind == "" {
		return nil, nil
	}
	blocked, err := r.Permission.Forbids(ctx, object.GetNamespace(), kind)
	if adopts := r.Kind.Traits(object).Adopts; adopts != "" && blocked == nil && err == nil {
		return r.Permission.forbidsAdoption(ctx, object.GetNamespace(), adopts)
	}
	return blocked, err
}

// Forbids returns why a runtime of this machine is not permitted in a namespace, or nil if it is. A nil Permission permits everything.
func (p *Permission) Forbids(ctx context.Context, namespace string, kind v1alpha1.RuntimeType) (*lifecycle.Blocked, error) {
	if p == nil {
		return nil, nil
	}
	// Confirm a refusal with a live read, because the cache may be older than the namespace or its label.
	for _, reader := range []client.Reader{p.Cache, p.Live} {
		permitted, err := p.permits(ctx, reader, namespace, kind)
		if err != nil || permitted {
			return nil, err
		}
	}
	return &lifecycle.Blocked{
		Reason: v1alpha1.ReasonRuntimeForbidden,
		Message: fmt.Sprintf("Runtime %s is not permitted in namespace %s. An administrator can label the namespace %s=%s, "+
			"or set %s.%s in ConfigMap %s/%s.", kind, namespace, v1alpha1.LabelAllowRuntime, kind, runtimesKey, namespace, p.Namespace, PolicyConfigMap),
	}, nil
}

// Allows reports whether a namespace permits a runtime of this machine, according to the cache. It decides only which objects compete; Forbids decides about a
// start. A nil Permission permits everything.
func (p *Permission) Allows(ctx context.Context, namespace string, kind v1alpha1.RuntimeType) (bool, error) {
	if p == nil {
		return true, nil
	}
	return p.permits(ctx, p.Cache, namespace, kind)
}

// AllowsAdoption reports the same about the adoption of a session or container in the form of the policy key adoption; it permits the adoption of nothing ("").
func (p *Permission) AllowsAdoption(ctx context.Context, namespace, what string) (bool, error) {
	if p == nil || what == "" {
		return true, nil
	}
	return p.permitsAdoption(ctx, p.Cache, namespace, what)
}

// forbiddenNow is the last check before a start. It bypasses the cache, because the permission may just have been withdrawn.
func (r *Reconciler) forbiddenNow(ctx context.Context, object Object) (bool, error) {
	kind := r.machineRuntime(object)
	if r.Permission == nil || kind == "" {
		return false, nil
	}
	permitted, err := r.Permission.permits(ctx, r.Permission.Live, object.GetNamespace(), kind)
	if adopts := r.Kind.Traits(object).Adopts; adopts != "" && permitted && err == nil {
		permitted, err = r.Permission.permitsAdoption(ctx, r.Permission.Live, object.GetNamespace(), adopts)
	}
	return !permitted, err
}

// machineRuntime returns the runtime of an object that runs on this machine; empty for Pods.
func (r *Reconciler) machineRuntime(object Object) v1alpha1.RuntimeType {
	switch kind := r.Kind.Traits(object).Runtime; kind {
	case v1alpha1.RuntimePod:
		return ""
	case "":
		return v1alpha1.RuntimeHost
	default:
		return kind
	}
}

func (p *Permission) permits(ctx context.Context, reader client.Reader, namespace string, kind v1alpha1.RuntimeType) (bool, error) {
	labels := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: namespace}, labels); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("check whether namespace %s permits the runtime %s: %w", namespace, kind, err)
	}
	if labels.Labels[v1alpha1.LabelAllowRuntime] == string(kind) {
		return true, nil
	}
	entries, err := p.entries(ctx, reader, namespace, runtimesKey)
	return slices.Contains(entries, "*") || slices.Contains(entries, string(kind)), err
}

// entries returns the entries of a key of the ConfigMap berth-policy that apply in a namespace.
func (p *Permission) entries(ctx context.Context, reader client.Reader, namespace, rule string) ([]string, error) {
	parameters := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: p.Namespace, Name: PolicyConfigMap}
	if err := reader.Get(ctx, key, parameters); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the key %s of ConfigMap %s for namespace %s: %w", rule, key, namespace, err)
	}
	text, own := parameters.Data[rule+"."+namespace]
	if !own {
		text = parameters.Data[rule]
	}
	var entries []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			entries = append(entries, line)
		}
	}
	return entries, nil
}

// watch makes changes of the permission trigger reconciles of a kind.
func (p *Permission) watch(b *builder.Builder, reader client.Reader, kind Kind) *builder.Builder {
	enqueue := func(namespaceOf func(client.Object) string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, changed client.Object) []reconcile.Request {
			return Requests(ctx, reader, kind.NewList(), client.InNamespace(namespaceOf(changed))) // each start checks the permission, also if the list fails
		})
	}
	// Watch whole objects: an informer of metadata leaks a goroutine when it stops with an event in flight.
	b = b.Watches(&corev1.Namespace{}, enqueue(client.Object.GetName), builder.WithPredicates(permissionChanged()))
	everywhere := func(client.Object) string { return "" }
	return b.Watches(&corev1.ConfigMap{}, enqueue(everywhere), builder.WithPredicates(p.parametersChanged()))
}

func permissionChanged() predicate.Predicate {
	allowed := func(namespace client.Object) string { return namespace.GetLabels()[v1alpha1.LabelAllowRuntime] }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return allowed(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool { return allowed(e.ObjectOld) != allowed(e.ObjectNew) },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

func (p *Permission) parametersChanged() predicate.Predicate {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == PolicyConfigMap && o.GetNamespace() == p.Namespace })
	return predicate.And(ours, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, was := e.ObjectOld.(*corev1.ConfigMap)
		after, is := e.ObjectNew.(*corev1.ConfigMap)
		return !was || !is || !equality.Semantic.DeepEqual(before.Data, after.Data)
	}})
}
