// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/conditions"
)

const (
	// mostListed is the maximum number of sessions and containers in status.found.
	mostListed = 256
)

// write writes the status in one patch, which fails if the object has changed in the meantime, and then emits events. It does not write a status in which only
// the time of the search would change.
func (r *Reconciler) write(ctx context.Context, p *pass) error {
	base := p.discovery.DeepCopy()
	status := &p.discovery.Status
	if !p.stopped() {
		p.report(status)
	}
	status.ObservedGeneration = p.discovery.Generation
	status.ObservedRefreshToken = cmp.Or(p.discovery.Spec.RefreshToken, status.ObservedRefreshToken) // a removed token is no request
	p.conclude()
	if equality.Semantic.DeepEqual(base.Status, *status) {
		return nil
	}
	if !p.stopped() {
		status.LastDiscoveryTime = ptr.To(metav1.NewMicroTime(p.now))
	}
	after := p.discovery.DeepCopy()
	if _, err := consistency.WriteStatus(ctx, r.Client, base, p.discovery); err != nil {
		return err
	}
	r.emitEvents(p, base, after)
	return nil
}

// report sets status.found and status.totals. For a source that could not be searched it keeps the previous entries, because a failed search yields no
// information.
func (p *pass) report(status *v1alpha1.InstanceDiscoveryStatus) {
	all := slices.Concat(p.entries, p.before())
	position := func(entry v1alpha1.DiscoveredInstance) int {
		return slices.IndexFunc(p.discovery.Spec.Sources, func(source v1alpha1.DiscoverySource) bool { return source.Name == entry.Source })
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.DiscoveredInstance) int { return position(a) - position(b) })
	status.Totals = v1alpha1.DiscoveryTotals{Found: int32(len(all)), Adopted: p.adopted} //nolint:gosec // as many as a machine can hold
	for i := range all {
		switch all[i].Outcome {
		case v1alpha1.DiscoveryCreated:
			status.Totals.Created++
		case v1alpha1.DiscoveryKnown:
			status.Totals.Known++
		default:
			status.Totals.Skipped++
		}
	}
	status.Found = all[:min(len(all), mostListed)]
}

// before returns the previous entries of the sources that could not be searched this time.
func (p *pass) before() []v1alpha1.DiscoveredInstance {
	var kept []v1alpha1.DiscoveredInstance
	for _, entry := range p.discovery.Status.Found {
		if p.trouble.sources[entry.Source] {
			kept = append(kept, entry)
		}
	}
	return kept
}

// conclude sets the conditions. Exactly one of Ready, Reconciling and Stalled is True.
func (p *pass) conclude() {
	t := &p.trouble
	switch {
	case p.stopped():
		p.be(v1alpha1.ConditionReady, v1alpha1.ReasonStopped, "Discovery is stopped. Set spec.state to Running to start it.")
	case len(t.patterns) > 0:
		p.be(v1alpha1.ConditionStalled, v1alpha1.ReasonInvalidPattern, strings.Join(t.patterns, "; ")+". Correct spec.sources.")
	case len(t.forbidden) > 0:
		p.be(v1alpha1.ConditionStalled, v1alpha1.ReasonRuntimeForbidden, strings.Join(t.forbidden, "; "))
	case len(t.unadoptable) > 0:
		p.be(v1alpha1.ConditionStalled, v1alpha1.ReasonAdoptionForbidden, strings.Join(t.unadoptable, "; "))
	case len(t.missing) > 0:
		p.be(v1alpha1.ConditionStalled, v1alpha1.ReasonRuntimeUnavailable, strings.Join(t.missing, "; "))
	case len(t.away) > 0:
		p.be(v1alpha1.ConditionReconciling, v1alpha1.ReasonRuntimeUnavailable, strings.Join(t.away, "; ")+". Berth retries.")
	default:
		p.be(v1alpha1.ConditionReady, v1alpha1.ReasonDiscovered, "All sources were searched.")
	}
}

func (p *pass) be(which, reason, message string) {
	conditions.Writer{Conditions: &p.discovery.Status.Conditions, Generation: p.discovery.Generation, Now: p.now}.Be(which, reason, message)
}

// mostNamed is the maximum number of new Instances that an event names.
const mostNamed = 10

// emitEvents emits events for created Instances and for sources that can no longer be searched.
func (r *Reconciler) emitEvents(p *pass, before, after *v1alpha1.InstanceDiscovery) {
	if n := len(p.created); n > 0 {
		names := strings.Join(p.created[:min(n, mostNamed)], ", ")
		if n > mostNamed {
			names += fmt.Sprintf(" and %d more", n-mostNamed)
		}
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.ReasonDiscovered, "Reconcile", "%s",
			conditions.Truncate(fmt.Sprintf("Created %d Instances: %s.", n, names), conditions.MaxMessage))
	}
	ready := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	bad := slices.Contains([]string{v1alpha1.ReasonRuntimeUnavailable, v1alpha1.ReasonRuntimeForbidden, v1alpha1.ReasonAdoptionForbidden, v1alpha1.ReasonInvalidPattern}, ready.Reason)
	if bad && (was == nil || was.Reason != ready.Reason) {
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, ready.Reason, "Reconcile", "%s", ready.Message)
	}
}
