// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// Range is a port range, including both ends.
type Range struct {
	First, Last int32
}

// DefaultRange lies below the ports that operating systems use for outgoing connections.
var DefaultRange = Range{First: 20000, Last: 29999}

func (r Range) validate() error {
	if r.First < 1 || r.Last > 65535 || r.First > r.Last {
		return fmt.Errorf("port range %d-%d is invalid: use ports from 1 to 65535, the lower one first", r.First, r.Last)
	}
	return nil
}

const (
	// conflictRetry is how soon to check again whether a port is free. A reconcile is also triggered when another DevServer releases the port.
	conflictRetry = 2 * time.Second
	// noPortRetry is how soon to retry when the range has no free port, or when the proxy is not permitted to listen on its port.
	noPortRetry = 10 * time.Second
	// longestCommand is the maximum length of a foreign command line in a message, in characters.
	longestCommand = 120
)

// contest returns a Blocked that names the other DevServer that owns the port. It returns nil if dev owns the port.
func (k *Kind) contest(dev *v1alpha1.DevServer, all *v1alpha1.DevServerList, port int32) *lifecycle.Blocked {
	own, _ := claimOn(dev, port)
	reservedFor := k.reserved.Holder(port, k.clock.Now())
	own.Holds = own.Holds || reservedFor == dev.UID
	claims := []arbitration.Claim{own}
	for i := range all.Items {
		other := &all.Items[i]
		if other.UID == dev.UID || !hosts.Same(dev, other) {
			continue
		}
		theirs, competes := claimOn(other, port)
		reserved := reservedFor == other.UID
		if competes || reserved { // the status of an object with a recent assignment may not be visible yet
			theirs.Holds = theirs.Holds || reserved
			claims = append(claims, theirs)
		}
	}
	first := arbitration.First(claims)
	if first.UID == dev.UID {
		return nil
	}
	return &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonPortClaimed,
		Message: fmt.Sprintf("Port %d belongs to %s, which claimed it first. Stop or delete that DevServer, or set another spec.port.",
			port, first.Describe("DevServer", dev.Namespace)),
		Retry: conflictRetry,
	}
}

// foreign returns a Blocked that names a process that listens on the port and does not belong to dev. It returns nil if there is none.
func (k *Kind) foreign(ctx context.Context, dev *v1alpha1.DevServer, all *v1alpha1.DevServerList, port int32) *lifecycle.Blocked {
	if k.inspector == nil {
		return nil
	}
	holders, err := k.inspector.PortOwners(ctx, port)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		// If the port is in use, the program fails to listen and reports the conflict itself.
		ctrl.LoggerFrom(ctx).Error(err, "Cannot determine which process listens on a port", "port", port)
		return nil
	}
	other := slices.IndexFunc(holders, func(holder runtime.PortOwner) bool { return holder.UID == "" || holder.UID != dev.UID })
	if other < 0 {
		return nil
	}
	return &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonPortInUse,
		Message:  fmt.Sprintf("Port %d is used by %s. Stop that process or set another spec.port.", port, k.describe(ctx, &holders[other], all, dev.Namespace)),
		Retry:    conflictRetry,
	}
}

// describe describes the holder of a port for the status of a DevServer in a namespace. It leaves out the command of an object in another namespace, because who
// can read the status need not be permitted to read that object.
func (k *Kind) describe(ctx context.Context, holder *runtime.PortOwner, all *v1alpha1.DevServerList, namespace string) string {
	if holder.PID == 0 {
		return fmt.Sprintf("a process of user %d whose PID cannot be determined", holder.User)
	}
	text := fmt.Sprintf("pid %d", holder.PID)
	kind, owner := k.objectOf(ctx, holder.UID, all)
	if command := printable(holder.Command); command != "" && (holder.UID == "" || owner.Key.Namespace == namespace) {
		text += " (" + command + ")"
	}
	if kind != "" {
		text += " of " + owner.Describe(kind, namespace)
	}
	return text
}

// objectOf returns the kind and the claim of the object with a UID. The kind is empty if there is none.
func (k *Kind) objectOf(ctx context.Context, uid types.UID, all *v1alpha1.DevServerList) (found string, owner arbitration.Claim) {
	if uid == "" {
		return "", owner
	}
	for kind, list := range map[string]client.ObjectList{
		"DevServer": all, "Instance": &v1alpha1.InstanceList{}, "LanguageServer": &v1alpha1.LanguageServerList{}, "StrategyRun": &v1alpha1.StrategyRunList{},
	} {
		if kind != "DevServer" && k.client.List(ctx, list, client.UnsafeDisableDeepCopy) != nil { // read-only
			continue
		}
		_ = meta.EachListItem(list, func(item kruntime.Object) error {
			if object, ok := item.(client.Object); ok && object.GetUID() == uid {
				found, owner = kind, arbitration.Of(object, true)
			}
			return nil
		})
	}
	return found, owner
}

// printable shortens a command line and removes unprintable characters, for use in a message.
func printable(command string) string {
	command = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(command, ""), func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }), " ")
	if runes := []rune(command); len(runes) > longestCommand {
		command = string(runes[:longestCommand-1]) + "…"
	}
	return command
}

// allocate chooses a port of the range that no other object names and no program has bound. The search starts at a port derived from the UID, so that an object
// gets the same port whenever possible.
func (k *Kind) allocate(dev *v1alpha1.DevServer, all *v1alpha1.DevServerList, except ...int32) (int32, *lifecycle.Blocked) {
	taken := map[int32]bool{}
	for _, port := range except {
		taken[port] = true
	}
	for i := range all.Items {
		if other := &all.Items[i]; other.UID != dev.UID {
			for _, port := range claimedPorts(other) {
				taken[port] = true
			}
		}
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dev.UID))
	size := uint32(k.ports.Last-k.ports.First) + 1 //nolint:gosec // validate keeps it from 1 to 65535
	for i := range size {
		port := k.ports.First + int32((hash.Sum32()%size+i)%size) //nolint:gosec // below 65535
		reservedFor := k.reserved.Holder(port, k.clock.Now())
		if !taken[port] && (reservedFor == "" || reservedFor == dev.UID) && (k.inspector == nil || k.network.free(port)) {
			return port, nil
		}
	}
	return 0, &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonNoFreePort,
		Message: fmt.Sprintf("Every port from %d to %d is claimed or in use. Delete unused DevServers or set spec.port.",
			k.ports.First, k.ports.Last),
		Retry: noPortRetry,
	}
}
