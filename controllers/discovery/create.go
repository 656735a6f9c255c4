// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/internal/conditions"
)

// create creates the Instance of a candidate. An existing Instance with the same name is not an error: another discovery may have found the same session or
// container, or a user may have used the name.
func (r *Reconciler) create(ctx context.Context, p *pass, t *candidate, entry *v1alpha1.DiscoveredInstance) (holder *v1alpha1.Instance, created bool, err error) {
	object := wanted(p.discovery, t)
	r.Hosts.Label(object)
	key := client.ObjectKeyFromObject(object)
	if other := r.reserved.Take(t.places()[0], key, p.now); other != key {
		entry.Outcome, entry.Reason, entry.InstanceRef = v1alpha1.DiscoveryKnown, v1alpha1.ReasonAlreadyClaimed, reference(p.discovery, other)
		return nil, false, nil
	}
	err = r.Client.Create(ctx, object)
	switch {
	case err == nil:
		standsFor(p.discovery, object, entry)
		return object, true, nil
	case apierrors.IsAlreadyExists(err):
		holder, err = r.there(ctx, p.discovery, t, key, entry)
		return holder, false, err
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		r.reserved.Release(key, p.now)
		skip(entry, v1alpha1.ReasonRefused, conditions.Sentence("The API server rejects the Instance: "+err.Error()))
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("create Instance %s of %s: %w", key.Name, t.Name, err)
}

// The method named there reads the existing Instance with the given key from the API server, and records in entry whether it represents the candidate.
func (r *Reconciler) there(ctx context.Context, d *v1alpha1.InstanceDiscovery, t *candidate, key types.NamespacedName, entry *v1alpha1.DiscoveredInstance) (
	*v1alpha1.Instance, error,
) {
	object := &v1alpha1.Instance{}
	if err := r.Reader.Get(ctx, key, object); err != nil {
		return nil, consistency.StaleOr(err, "read Instance "+key.Name+", which already exists")
	}
	entry.InstanceRef = reference(d, key)
	switch same := slices.Contains(t.places(), instance.Place(object)); {
	case same && instance.Claims(object):
		standsFor(d, object, entry)
		return object, nil
	case same:
		skip(entry, v1alpha1.ReasonEnded, "The process of its Instance has ended or is stopped. Delete the Instance to discover it again, or run \"berth restart inst/"+key.Name+"\".")
	default:
		skip(entry, v1alpha1.ReasonNameTaken, "The name for the new Instance is already taken. Delete the Instance with that name, or recreate it with another name.")
	}
	return nil, nil //nolint:nilnil // no Instance represents the candidate; the entry states why
}

// wanted returns the Instance for a candidate. That Instance never starts a process, and its deletion leaves the process running.
func wanted(d *v1alpha1.InstanceDiscovery, t *candidate) *v1alpha1.Instance {
	template := &d.Spec.Template
	labels := texts(template.Labels)
	labels[v1alpha1.LabelDiscoveredBy] = d.Name
	if template.Session != "" {
		labels[v1alpha1.LabelSession] = template.Session
	}
	object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.Namespace, Name: objectName(t), Labels: labels, Annotations: texts(template.Annotations),
		// Without this finalizer at creation, the controller of Instances would add it in a separate write.
		Finalizers: []string{v1alpha1.FinalizerProcess},
	}}
	spec := &object.Spec
	spec.DisplayName = conditions.Truncate(t.Name, longestShown)
	spec.Session = template.Session
	spec.Adoption, spec.DeletionPolicy = v1alpha1.AdoptionRequired, v1alpha1.DeletionOrphan
	spec.RestartPolicy = v1alpha1.RestartNever
	spec.TTLSecondsAfterStopped = ptr.To(ptr.Deref(template.TTLSecondsAfterStopped, defaultTTL))
	spec.Process.Command = []string{"unknown"}
	if name := program(&t.Found); name != "" {
		spec.Process.Command[0] = strings.ReplaceAll(conditions.Truncate(name, longestShown), "$(", "$$(")
	}
	spec.Runtime = &v1alpha1.InstanceRuntime{Type: t.kind}
	if t.kind == v1alpha1.RuntimeTmux {
		spec.Runtime.Tmux = &v1alpha1.TmuxRuntime{Session: t.Name, Socket: t.socket}
	} else {
		spec.Runtime.Docker = &v1alpha1.DockerRuntime{Container: t.Name} // by its name, because the policies on adoption compare names
	}
	return object
}

func texts(of map[string]v1alpha1.LabelText) map[string]string {
	all := make(map[string]string, len(of)+2)
	for name, value := range of {
		all[name] = string(value)
	}
	return all
}
