// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// IndexPort is the field index that finds DevServers by the ports that they name in spec or status.
const IndexPort = "berth.dev/port"

// claim is what one DevServer has to do with a port. Everybody who sees the same objects orders claims in the same way.
type claim struct {
	uid     types.UID
	key     types.NamespacedName
	created time.Time
	// holds: a process was given this port already and has not ended, or is only being restarted. A server that runs is never disowned.
	holds bool
}

// before says whether this claim goes before the other one: who holds the port first, then who is older, then who has the lower UID.
func (c claim) before(other claim) bool {
	if c.holds != other.holds {
		return c.holds
	}
	return cmp.Or(c.created.Compare(other.created), cmp.Compare(c.uid, other.uid)) < 0
}

// claimOn gives what the object has to do with a port, if it competes for it: it runs there, or wants to.
func claimOn(dev *v1alpha1.DevServer, port int32) (claim, bool) {
	given := port != 0 && (dev.Status.Port == port || dev.Status.BackendPort == port)
	running := given && (live(dev) || fronted(dev) && dev.Status.Port == port)
	wanted := wants(dev) && next(dev).has(port)
	return claim{
		uid:     dev.UID,
		key:     client.ObjectKeyFromObject(dev),
		created: dev.CreationTimestamp.Time,
		holds:   running || wanted && restarting(dev) && given,
	}, running || wanted
}

// fronted says that the port of the object is held by the front: once it was given to it, until the object is gone or wants no proxy any more.
func fronted(dev *v1alpha1.DevServer) bool {
	return proxied(dev) && dev.Status.BackendPort != 0
}

// proxied says that the object wants a proxy.
func proxied(dev *v1alpha1.DevServer) bool { return dev.Spec.Proxy == v1alpha1.ProxyEnabled }

// holder gives the first of all claims on a port.
func holder(claims []claim) claim {
	return slices.MinFunc(claims, func(a, b claim) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
}

// next are the ports that the next incarnation is given; 0 where one has to be allocated.
func next(dev *v1alpha1.DevServer) assignment {
	a := assignment{public: dev.Status.Port, proxied: proxied(dev)}
	if dev.Spec.Port != nil {
		a.public = *dev.Spec.Port
	}
	if a.proxied && dev.Status.BackendPort != a.public {
		a.backend = dev.Status.BackendPort
	}
	return a
}

// assigned are the ports that the recorded incarnation was given.
func assigned(dev *v1alpha1.DevServer) assignment {
	return assignment{public: dev.Status.Port, backend: dev.Status.BackendPort, proxied: dev.Status.BackendPort != 0}
}

// live says that an incarnation was recorded whose end was not.
func live(dev *v1alpha1.DevServer) bool {
	status := &dev.Status
	return status.Process != nil || status.Incarnation > 0 && (status.LastExit == nil || status.LastExit.Incarnation < status.Incarnation)
}

// wants says that the object may start a process: it should run, and has not ended for good.
func wants(dev *v1alpha1.DevServer) bool {
	if dev.Spec.State == v1alpha1.StateStopped || !dev.DeletionTimestamp.IsZero() {
		return false
	}
	status := &dev.Status
	settled := status.ObservedGeneration == dev.Generation && status.LastExit != nil && status.NextRestartTime == nil &&
		status.LastExit.Incarnation >= status.Incarnation && status.LastExit.Reason != v1alpha1.ReasonStopped
	return !settled
}

func restarting(dev *v1alpha1.DevServer) bool {
	return meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionRestarting)
}

// named gives the ports that an object names.
func named(dev *v1alpha1.DevServer) []int32 {
	var ports []int32
	if dev.Spec.Port != nil {
		ports = append(ports, *dev.Spec.Port)
	}
	for _, port := range []int32{dev.Status.Port, dev.Status.BackendPort} {
		if port != 0 && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

func byPort(object client.Object) []string {
	dev, ok := object.(*v1alpha1.DevServer)
	if !ok {
		return nil
	}
	var values []string
	for _, port := range named(dev) {
		values = append(values, strconv.Itoa(int(port)))
	}
	return values
}

// rivals gives the other objects that name a port of this one.
func (k *Kind) rivals(ctx context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, port := range byPort(object) {
		var list v1alpha1.DevServerList
		if err := k.client.List(ctx, &list, client.MatchingFields{IndexPort: port}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing the devservers that name a port", "port", port)
			continue // each of them also looks again by itself
		}
		for i := range list.Items {
			if list.Items[i].UID != object.GetUID() {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
	}
	return requests
}

// contentionChanged lets through what may give a port to somebody else.
func contentionChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.DevServer)
			if !ok {
				return false
			}
			after, ok := e.ObjectNew.(*v1alpha1.DevServer)
			return ok && (live(before) != live(after) || wants(before) != wants(after) || !slices.Equal(named(before), named(after)))
		},
	}
}
