// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arbitration decides which of several objects owns a port, a tmux session or a container that only one of them can have. Apart from
// reservations, the decision depends only on the objects, so all managers that read the same objects decide alike. A reservation covers the short time until the
// cache shows a recent decision.
package arbitration

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Claim is the claim of one object to a thing: a port, a tmux session or a container.
type Claim struct {
	UID     types.UID
	Key     types.NamespacedName
	Created time.Time
	// Holds reports that the object already has the thing and has not released it. An object whose process runs keeps its claim.
	Holds bool
}

// Of returns the claim of an object.
func Of(object client.Object, holds bool) Claim {
	return Claim{UID: object.GetUID(), Key: client.ObjectKeyFromObject(object), Created: object.GetCreationTimestamp().Time, Holds: holds}
}

// Describe names the object of the claim for the status of an object in a namespace. It does not name an object of another namespace, because who can read the
// status need not be permitted to know of that object.
func (c Claim) Describe(kind, namespace string) string {
	if c.Key.Namespace != namespace {
		article := "a "
		if strings.ContainsAny(kind[:1], "AEIOU") {
			article = "an "
		}
		return article + kind + " in another namespace"
	}
	return kind + " " + c.Key.String()
}

// First returns the winning claim: the holder, then the oldest object, then the lowest UID. claims must not be empty.
func First(claims []Claim) Claim {
	return slices.MinFunc(claims, func(a, b Claim) int {
		if a.Holds != b.Holds {
			if a.Holds {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
}
