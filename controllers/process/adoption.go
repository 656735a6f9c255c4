// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// adoptionKey is the key of the ConfigMap berth-policy whose value lists what may be adopted, one entry per line. The key adoption.NAMESPACE replaces that value
// for one namespace. The admission policy berth-adoption reads the same keys, and must permit the same as Adoptable.
const adoptionKey = "adoption"

const (
	dockerPrefix = "docker:"
	tmuxPrefix   = "tmux:"
)

// AdoptsSession returns the form in which the key adoption names a tmux session.
func AdoptsSession(socket, session string) string { return tmuxPrefix + socket + "/" + session }

// AdoptsContainer returns the form in which the key adoption names a container.
func AdoptsContainer(name string) string { return dockerPrefix + name }

// containerID matches a container that is named by its ID. Its name is not known, so only an entry for all containers, or for this one, permits its adoption.
var containerID = regexp.MustCompile(`^docker:([0-9a-f]{12}|[0-9a-f]{64})$`)

// Adoptable lists what a namespace may adopt: tmux:SOCKET/SESSION, docker:NAME, or a prefix of these followed by *. An entry * permits everything.
type Adoptable []string

// Permits reports whether the session or container may be adopted.
func (a Adoptable) Permits(what string) bool {
	return slices.ContainsFunc(a, func(entry string) bool {
		prefix, begins := strings.CutSuffix(entry, "*")
		switch {
		case !begins:
			return entry == what
		case prefix != "" && prefix != dockerPrefix && containerID.MatchString(what):
			return false
		}
		return strings.HasPrefix(what, prefix)
	})
}

// PermitsAny reports whether any session or container of a runtime may be adopted.
func (a Adoptable) PermitsAny(kind v1alpha1.RuntimeType) bool {
	of := map[v1alpha1.RuntimeType]string{v1alpha1.RuntimeTmux: tmuxPrefix, v1alpha1.RuntimeDocker: dockerPrefix}[kind]
	return slices.ContainsFunc(a, func(entry string) bool {
		prefix, begins := strings.CutSuffix(entry, "*")
		return strings.HasPrefix(entry, of) || begins && strings.HasPrefix(of, prefix)
	})
}

// Adoptable returns what a namespace may adopt. A nil Permission permits everything.
func (p *Permission) Adoptable(ctx context.Context, namespace string) (Adoptable, error) {
	if p == nil {
		return Adoptable{"*"}, nil
	}
	return p.entries(ctx, p.Cache, namespace, adoptionKey)
}

// forbidsAdoption returns why a namespace may not adopt a session or container, or nil if it may.
func (p *Permission) forbidsAdoption(ctx context.Context, namespace, what string) (*lifecycle.Blocked, error) {
	if p == nil {
		return nil, nil
	}
	for _, reader := range []client.Reader{p.Cache, p.Live} { // as in Forbids
		permitted, err := p.permitsAdoption(ctx, reader, namespace, what)
		if err != nil || permitted {
			return nil, err
		}
	}
	return &lifecycle.Blocked{Reason: v1alpha1.ReasonAdoptionForbidden, Message: p.AdoptionForbidden(namespace, what)}, nil
}

func (p *Permission) permitsAdoption(ctx context.Context, reader client.Reader, namespace, what string) (bool, error) {
	entries, err := p.entries(ctx, reader, namespace, adoptionKey)
	return Adoptable(entries).Permits(what), err
}

// AdoptionForbidden returns the message for what a namespace may not adopt.
func (p *Permission) AdoptionForbidden(namespace, what string) string {
	return fmt.Sprintf("The adoption of %s is not permitted in namespace %s. An administrator can add it to %s.%s in ConfigMap %s/%s.",
		what, namespace, adoptionKey, namespace, p.Namespace, PolicyConfigMap)
}
