// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/facts"
)

// scoped is a manager that is limited to some namespaces. Its options limit the cache; scoped limits the API reader in the same way.
type scoped struct {
	ctrl.Manager
	reader client.Reader
}

// scope returns mgr limited to namespaces, or mgr itself if namespaces is empty.
func scope(mgr ctrl.Manager, namespaces []string) ctrl.Manager {
	if len(namespaces) == 0 {
		return mgr
	}
	return &scoped{Manager: mgr, reader: &namespacedReader{Reader: mgr.GetAPIReader(), namespaces: namespaces}}
}

// GetAPIReader implements ctrl.Manager.
func (s *scoped) GetAPIReader() client.Reader { return s.reader }

// namespacedReader lists the objects of its namespaces if the caller names no namespace, because a manager without ClusterRoles may not list all namespaces.
type namespacedReader struct {
	client.Reader
	namespaces []string
}

// List implements client.Reader. Unless opts name a namespace, it sends one request for each namespace.
func (r *namespacedReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if (&client.ListOptions{}).ApplyOptions(opts).Namespace != "" {
		return r.Reader.List(ctx, list, opts...)
	}
	var all []apiruntime.Object
	for _, namespace := range r.namespaces {
		part := list.DeepCopyObject().(client.ObjectList)
		if err := r.Reader.List(ctx, part, append(slices.Clone(opts), client.InNamespace(namespace))...); err != nil {
			return err
		}
		items, err := meta.ExtractList(part)
		if err != nil {
			return err
		}
		all = append(all, items...)
	}
	return meta.SetList(list, all)
}

// cachedNamespaces returns the namespaces of the cache; nil means all.
func cachedNamespaces(namespaces []string) map[string]cache.Config {
	if len(namespaces) == 0 {
		return nil
	}
	limited := make(map[string]cache.Config, len(namespaces))
	for _, namespace := range namespaces {
		limited[namespace] = cache.Config{}
	}
	return limited
}

// serves reports whether the manager can read the object of a process. The namespace of a process that runs in no Pod is in its display name, such as
// devservers/default/web. The display name of a Pod is an annotation, which everyone who can create Pods can set.
func serves(namespaces []string, process facts.Incarnation) bool {
	if len(namespaces) == 0 {
		return true
	}
	if process.Namespace != "" {
		return slices.Contains(namespaces, process.Namespace)
	}
	parts := strings.Split(process.Name, "/")
	return len(parts) == 3 && slices.Contains(namespaces, parts[1])
}
