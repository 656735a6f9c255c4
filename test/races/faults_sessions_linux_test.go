// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/tmux"
)

// The mutants of the rows about sessions and containers.
func init() {
	mutants = append(mutants, []mutant{
		{row: "R01", without: "object names derived from the session: every discovery uses other names", sees: "exactly one object for each session", patient: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper {
				return &namesByDiscovery{next: next, met: map[string]chan struct{}{}}
			}},
		{row: "R02", without: "one write per state: a status is written in two parts", sees: "partially written", patient: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return splitsStatus{next} }},
		{row: "S01", without: "the refusal of a create whose name is taken: the create changes the existing object", sees: "the loser changes nothing", patient: true,
			wrapTransport: func(next http.RoundTripper) http.RoundTripper { return overwrites{next} }},
		{row: "S04", without: "the runtime type in a look-up: a session gets the status of a container", sees: "does not have the status of the container", patient: true,
			tmuxRuntime: func(d *sessionEnv) runtime.Runtime { return confusesNames{d.tmux, d} }},
		{row: "S06", without: "exact names: a prefix of a name matches", sees: "only the exact name matches",
			tmuxRuntime: func(d *sessionEnv) runtime.Runtime { return matchesPrefix{d.tmux, d} }},
	}...)
}

// namesByDiscovery gives every Instance that a discovery creates a name that contains the name of the discovery. The first of two creates for a session waits
// up to 5 s for the second one, so that two discoveries create their Instances at the same time.
type namesByDiscovery struct {
	next http.RoundTripper
	mu   sync.Mutex
	met  map[string]chan struct{}
}

func (o *namesByDiscovery) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "instances") {
		return o.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	metadata := childMap(content, "metadata")
	name := fmt.Sprint(metadata["name"])
	metadata["name"] = name + "-" + strings.ReplaceAll(fmt.Sprint(childMap(metadata, "labels")["berth.dev/discovered-by"]), ".", "-")
	o.mu.Lock()
	second, waits := o.met[name]
	if waits {
		delete(o.met, name)
		close(second)
	} else {
		second = make(chan struct{})
		o.met[name] = second
	}
	o.mu.Unlock()
	select {
	case <-second:
	case <-req.Context().Done():
	case <-time.After(5 * time.Second):
	}
	return o.next.RoundTrip(withBody(req, content))
}

// overwrites changes the existing Instance if a create fails because its name is taken.
type overwrites struct{ next http.RoundTripper }

func (o overwrites) RoundTrip(req *http.Request) (*http.Response, error) {
	if !isCreate(req, "instances") {
		return o.next.RoundTrip(req)
	}
	content, err := readBody(req)
	if err != nil {
		return nil, err
	}
	answer, err := o.next.RoundTrip(withBody(req, content))
	if err != nil || answer.StatusCode != http.StatusConflict {
		return answer, err
	}
	_ = answer.Body.Close()
	name := fmt.Sprint(childMap(content, "metadata")["name"])
	change := req.Clone(req.Context())
	change.Method, change.URL.Path = http.MethodPatch, req.URL.Path+"/"+name
	change.Header.Set("Content-Type", "application/merge-patch+json")
	return o.next.RoundTrip(withBody(change, map[string]any{"spec": map[string]any{"displayName": childMap(content, "spec")["displayName"]}}))
}

// confusesNames mistakes a container for the session with the same name: it reports a session as exited if no such container exists.
type confusesNames struct {
	*tmux.Runtime
	sessions *sessionEnv
}

func (b confusesNames) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := b.Runtime.Observe(ctx, uid)
	place, placed := b.Place(uid)
	if err != nil || !placed || len(found) == 0 {
		return found, err
	}
	containers, err := b.sessions.docker.Find(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		if c.Name == place.Session {
			return found, nil
		}
	}
	for i := range found {
		found[i].Phase, found[i].Exit = facts.Exited, &facts.Exit{FinishedAt: time.Now()}
	}
	return found, nil
}

// matchesPrefix matches a session by a prefix of its name, as tmux itself does for a target without an equals sign.
type matchesPrefix struct {
	*tmux.Runtime
	sessions *sessionEnv
}

// Capabilities returns the capabilities of the tmux runtime, but with the Check of matchesPrefix.
func (b matchesPrefix) Capabilities() runtime.Capabilities {
	can := b.Runtime.Capabilities()
	can.Inspection = b
	return can
}

func (b matchesPrefix) resolve(ctx context.Context, p runtime.Process) runtime.Process {
	config := map[string]any{}
	if json.Unmarshal(p.Config, &config) != nil {
		return p
	}
	sessions, err := b.Sessions(ctx, b.sessions.socket)
	if err != nil {
		return p
	}
	name := fmt.Sprint(config["session"])
	for _, s := range sessions {
		if strings.HasPrefix(s.Name, name) {
			config["session"] = s.Name
		}
	}
	if text, err := json.Marshal(config); err == nil {
		p.Config = text
	}
	return p
}

func (b matchesPrefix) Start(ctx context.Context, p runtime.Process) error {
	return b.Runtime.Start(ctx, b.resolve(ctx, p))
}

func (b matchesPrefix) Check(ctx context.Context, p runtime.Process) error {
	return b.Runtime.Check(ctx, b.resolve(ctx, p))
}
