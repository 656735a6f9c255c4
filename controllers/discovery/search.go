// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/runtime"
)

// lookTimeout bounds the total time for the responses of the tmux servers and the Docker engine, which usually take milliseconds.
const lookTimeout = 10 * time.Second

// candidate is a session or container that a source matches.
type candidate struct {
	runtime.Found
	source string
	kind   v1alpha1.RuntimeType
	socket string // the tmux server of a session; empty for a container
}

// places returns the values of IndexPlace by which an Instance may claim the session or container. A new Instance uses the first one.
func (t *candidate) places() []string {
	if t.kind == v1alpha1.RuntimeTmux {
		return []string{instance.SessionPlace(t.socket, t.Name)}
	}
	places := []string{instance.ContainerPlace(t.Name), instance.ContainerPlace(t.ID)}
	if len(t.ID) > shortID {
		places = append(places, instance.ContainerPlace(t.ID[:shortID]))
	}
	return places
}

// adopts returns the session or container in the form of the policy key adoption.
func (t *candidate) adopts() string {
	if t.kind == v1alpha1.RuntimeTmux {
		return process.AdoptsSession(t.socket, t.Name)
	}
	return process.AdoptsContainer(t.Name)
}

// shortID is the length of the container IDs that docker prints.
const shortID = 12

// searchTarget is a place to search: a tmux server, or the Docker engine. Each is queried once, however many sources name it.
type searchTarget struct {
	kind   v1alpha1.RuntimeType
	socket string
}

func whereOf(source *v1alpha1.DiscoverySource) searchTarget {
	w := searchTarget{kind: source.Type}
	if w.kind == v1alpha1.RuntimeTmux {
		w.socket = defaultSocket
		if source.Tmux != nil && source.Tmux.Socket != "" {
			w.socket = source.Tmux.Socket
		}
	}
	return w
}

// defaultSocket is the name of the default tmux server.
const defaultSocket = "default"

// sourceErrors records why sources could not be searched, as text for users.
type sourceErrors struct {
	// Each list has one message per source that could not be searched, by cause. patterns lists the sources whose pattern is invalid or too large.
	// forbidden lists those whose runtime the namespace does not permit. unadoptable lists those of which the namespace may adopt nothing. missing lists those whose runtime this manager does not serve. away lists those
	// whose runtime did not respond.
	patterns, forbidden, unadoptable, missing, away []string
	// sources contains the names of the sources whose previous entries stay in the status. It does not contain forbidden sources.
	sources map[string]bool
}

func (t *sourceErrors) note(list *[]string, source, format string, args ...any) {
	*list = append(*list, fmt.Sprintf("source %s: ", source)+fmt.Sprintf(format, args...))
	if t.sources == nil {
		t.sources = map[string]bool{}
	}
	t.sources[source] = true
}

// searchResult is the result of searching one place.
type searchResult struct {
	found   []runtime.Found
	missing string
	err     error
}

// search searches all places concurrently and keeps the sessions and containers that the sources match.
func (r *Reconciler) search(ctx context.Context, p *pass) error {
	if p.stopped() {
		return nil
	}
	adoptable, err := r.Permission.Adoptable(ctx, p.discovery.Namespace)
	if err != nil {
		return err
	}
	sources, err := r.permitted(ctx, p, adoptable)
	if err != nil {
		return err
	}
	answers := r.ask(ctx, sources)
	if err := ctx.Err(); err != nil {
		return err
	}
	seen, patterns := map[string]bool{}, pattern.Compile(patternsOf(sources))
	for i := range sources {
		source := &sources[i]
		if err := patterns.Errors[i]; err != nil {
			p.trouble.note(&p.trouble.patterns, source.Name, "pattern %v", err)
			continue
		}
		at, named := whereOf(source), patterns.Patterns[i]
		switch told := answers[at]; {
		case told.missing != "":
			p.trouble.note(&p.trouble.missing, source.Name, "%s", strings.TrimSuffix(told.missing, "."))
		case told.err != nil:
			p.trouble.note(&p.trouble.away, source.Name, "%v", told.err)
		case named != nil && tooMany(told.found, patterns):
			p.trouble.note(&p.trouble.patterns, source.Name, "the patterns of all sources are too large for the names of %d sessions", len(told.found))
		default:
			p.keep(source.Name, at, adoptable, told.found, matcher(source, named), seen)
		}
	}
	return nil
}

// permitted returns the sources whose runtime the namespace permits, and of which it may adopt anything. The earlier results of the other sources are not kept
// in the status, because they describe a machine that the namespace may not use.
func (r *Reconciler) permitted(ctx context.Context, p *pass, adoptable process.Adoptable) ([]v1alpha1.DiscoverySource, error) {
	var sources []v1alpha1.DiscoverySource
	for _, source := range p.discovery.Spec.Sources {
		blocked, err := r.Permission.Forbids(ctx, p.discovery.Namespace, source.Type)
		if err != nil {
			return nil, err
		}
		if blocked != nil {
			p.trouble.forbidden = append(p.trouble.forbidden, "source "+source.Name+": "+strings.TrimSuffix(blocked.Message, "."))
			continue
		}
		if !adoptable.PermitsAny(source.Type) {
			what := map[v1alpha1.RuntimeType]string{v1alpha1.RuntimeTmux: "tmux sessions", v1alpha1.RuntimeDocker: "containers"}[source.Type]
			p.trouble.unadoptable = append(p.trouble.unadoptable,
				"source "+source.Name+": "+strings.TrimSuffix(r.Permission.AdoptionForbidden(p.discovery.Namespace, what), "."))
			continue
		}
		sources = append(sources, source)
	}
	return sources, nil
}

// keep adds the sessions and containers that this source matches, that the namespace may adopt, and that no earlier source has matched. A namespace does not
// learn of sessions and containers that it may not adopt.
func (p *pass) keep(source string, at searchTarget, adoptable process.Adoptable, found []runtime.Found, means func(*runtime.Found) bool, seen map[string]bool) {
	begin := len(p.candidates)
	for i := range found {
		t := candidate{Found: found[i], source: source, kind: at.kind, socket: at.socket}
		if place := t.places()[0]; !seen[place] && adoptable.Permits(t.adopts()) && means(&t.Found) {
			seen[place] = true
			p.candidates = append(p.candidates, t)
		}
	}
	slices.SortFunc(p.candidates[begin:], func(a, b candidate) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID)) })
}

// ask searches each place of the sources once.
func (r *Reconciler) ask(ctx context.Context, sources []v1alpha1.DiscoverySource) map[searchTarget]searchResult {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers := map[searchTarget]searchResult{}
	asked := map[searchTarget]bool{}
	for i := range sources {
		at := whereOf(&sources[i])
		if asked[at] {
			continue
		}
		asked[at] = true
		asking.Go(func() {
			told := r.askOne(ctx, at)
			mu.Lock()
			defer mu.Unlock()
			answers[at] = told
		})
	}
	asking.Wait()
	return answers
}

func (r *Reconciler) askOne(ctx context.Context, at searchTarget) (told searchResult) {
	can := r.Runtimes.For(at.kind).Capabilities()
	if can.Adoption == nil {
		return searchResult{missing: can.Disabled}
	}
	told.found, told.err = can.Adoption.Find(ctx, at.socket)
	return told
}
