// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/hosts"
)

// settle determines the outcome for each candidate, and creates an Instance for each candidate that needs one.
func (r *Reconciler) settle(ctx context.Context, p *pass) error {
	p.entries = make([]v1alpha1.DiscoveredInstance, len(p.candidates))
	holders := make([]*v1alpha1.Instance, len(p.candidates))
	var fresh []int
	for i := range p.candidates {
		var settled bool
		var err error
		if holders[i], settled, err = r.matchExisting(ctx, p.discovery, &p.candidates[i], &p.entries[i]); err != nil {
			return err
		}
		if !settled {
			fresh = append(fresh, i)
		}
	}
	if err := r.createAll(ctx, p, fresh, holders); err != nil {
		return err
	}
	kept, err := r.keptHolders(ctx, p)
	if err != nil {
		return err
	}
	for _, holder := range append(holders, kept...) {
		if holder != nil && adopted(holder) {
			p.adopted++
		}
	}
	return nil
}

// createAll creates Instances for the candidates whose indexes are in fresh. It does so concurrently, because two hundred sequential requests take seconds.
func (r *Reconciler) createAll(ctx context.Context, p *pass, fresh []int, holders []*v1alpha1.Instance) error {
	if len(fresh) == 0 {
		return nil
	}
	if err := r.confirm(ctx, p.discovery); err != nil {
		return err
	}
	group, inside := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	news := make([]bool, len(p.candidates))
	for _, i := range fresh {
		group.Go(func() (err error) {
			holders[i], news[i], err = r.create(inside, p, &p.candidates[i], &p.entries[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, is := range news {
		if is {
			p.created = append(p.created, p.entries[i].InstanceRef.Name)
		}
	}
	return nil
}

// keptHolders returns the Instances that the status records for sources that could not be searched this time. An Instance that no longer exists is empty.
func (r *Reconciler) keptHolders(ctx context.Context, p *pass) ([]*v1alpha1.Instance, error) {
	var kept []*v1alpha1.Instance
	for _, entry := range p.before() {
		if entry.InstanceRef == nil {
			continue
		}
		key, holder := types.NamespacedName(*entry.InstanceRef), &v1alpha1.Instance{}
		if err := r.Client.Get(ctx, key, holder); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read the discovered Instance %s: %w", key, err)
		}
		kept = append(kept, holder)
	}
	return kept, nil
}

// atOnce is the maximum number of concurrent creations.
const atOnce = 16

// matchExisting determines the outcome for a candidate that needs no new Instance. settled is false for a candidate that needs one.
func (r *Reconciler) matchExisting(ctx context.Context, d *v1alpha1.InstanceDiscovery, t *candidate, entry *v1alpha1.DiscoveredInstance) (
	holder *v1alpha1.Instance, settled bool, err error,
) {
	*entry = v1alpha1.DiscoveredInstance{Source: t.source, Name: conditions.Truncate(t.Name, longestShown), ID: shown(t)}
	if t.Owned {
		holder, err = r.owner(ctx, t.Owner)
		switch {
		case err != nil:
		case holder == nil:
			skip(entry, v1alpha1.ReasonForeignBerth, "Managed by another Berth installation, or by an object that was just deleted.")
		case holder.Spec.Adoption == v1alpha1.AdoptionNever || holder.Spec.Adoption == "":
			skip(entry, v1alpha1.ReasonBerthsOwn, "Started by Berth.")
			entry.InstanceRef = reference(d, client.ObjectKeyFromObject(holder))
		default:
			standsFor(d, holder, entry)
		}
		return holder, true, err
	}
	if holder, err = r.claimant(ctx, d, t); err != nil || holder != nil {
		if holder != nil {
			standsFor(d, holder, entry)
		}
		return holder, true, err
	}
	if t.Unfit != "" {
		skip(entry, v1alpha1.ReasonUnfit, "Cannot be adopted: "+t.Unfit+".")
		return nil, true, nil
	}
	return nil, false, nil
}

// owner returns the Instance with the given UID, or nil if there is none.
func (r *Reconciler) owner(ctx context.Context, uid types.UID) (*v1alpha1.Instance, error) {
	var list v1alpha1.InstanceList
	if uid == "" {
		return nil, nil //nolint:nilnil // absence is not an error
	}
	if err := r.Client.List(ctx, &list, client.MatchingFields{process.IndexUID: string(uid)}); err != nil {
		return nil, fmt.Errorf("find the owner of a session: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, nil //nolint:nilnil // absence is not an error
	}
	return &list.Items[0], nil
}

// claimant returns the Instance that a candidate belongs to: the winner among the Instances that claim it (see arbitration.First), otherwise a stopped or
// completed Instance that a user has created for it. It ignores a stopped or completed Instance that a discovery created, because the session or container
// that it represented is gone.
func (r *Reconciler) claimant(ctx context.Context, d *v1alpha1.InstanceDiscovery, t *candidate) (*v1alpha1.Instance, error) {
	byUID := map[types.UID]*v1alpha1.Instance{}
	var claims []arbitration.Claim
	var idle *v1alpha1.Instance
	for _, place := range t.places() {
		var list v1alpha1.InstanceList
		if err := r.Client.List(ctx, &list, client.MatchingFields{instance.IndexPlace: place}); err != nil {
			return nil, fmt.Errorf("list the instances that claim %s: %w", place, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			if !hosts.Same(object, d) {
				continue
			}
			own := object.Namespace == d.Namespace
			competes, err := instance.Competes(ctx, object, r.Permission)
			if err != nil {
				return nil, err
			}
			switch {
			case competes || own && instance.Claims(object):
				byUID[object.UID] = object
				claims = append(claims, arbitration.Of(object, arbitration.Live(object)))
			case !own && instance.Claims(object): // an Instance that cannot start keeps no session from other namespaces
			case object.Labels[v1alpha1.LabelDiscoveredBy] == "" && object.DeletionTimestamp.IsZero() && idle == nil:
				idle = object
			}
		}
	}
	if len(claims) > 0 {
		return byUID[arbitration.First(claims).UID], nil
	}
	return idle, nil
}

// standsFor records in entry that the Instance holder represents the candidate.
func standsFor(d *v1alpha1.InstanceDiscovery, holder *v1alpha1.Instance, entry *v1alpha1.DiscoveredInstance) {
	entry.InstanceRef = reference(d, client.ObjectKeyFromObject(holder))
	if holder.Namespace == d.Namespace && holder.Labels[v1alpha1.LabelDiscoveredBy] == d.Name {
		entry.Outcome = v1alpha1.DiscoveryCreated
		return
	}
	entry.Outcome, entry.Reason = v1alpha1.DiscoveryKnown, v1alpha1.ReasonAlreadyClaimed
}

func skip(entry *v1alpha1.DiscoveredInstance, reason, message string) {
	entry.Outcome, entry.Reason, entry.Message = v1alpha1.DiscoverySkipped, reason, conditions.Truncate(message, longestShown)
}

// reference returns a reference to an Instance for the status of a discovery; nil for an Instance of another namespace, because who can read the status need not
// be permitted to know of it.
func reference(d *v1alpha1.InstanceDiscovery, key types.NamespacedName) *v1alpha1.NamespacedReference {
	if key.Namespace != d.Namespace {
		return nil
	}
	return &v1alpha1.NamespacedReference{Namespace: key.Namespace, Name: key.Name}
}

// shown returns the ID as tmux and docker print it.
func shown(t *candidate) string {
	if t.kind == v1alpha1.RuntimeDocker && len(t.ID) > shortID {
		return t.ID[:shortID]
	}
	return t.ID
}

// longestShown is the maximum length of a text in a status entry, in bytes.
const longestShown = 256
