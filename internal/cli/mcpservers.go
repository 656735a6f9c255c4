// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/cli/code"
)

// languageIdle is how long a connection to a language server stays open without use. A server with the state OnDemand can then sleep.
const languageIdle = 15 * time.Minute

// languageClients are the connections of the tools to language servers.
type languageClients struct {
	mu    sync.Mutex
	slots map[string]*languageSlot // by the name of the LanguageServer
}

// languageSlot is the connection to one LanguageServer. Its mutex is held while the connection is opened, so that a server that does not answer delays only its own
// callers.
type languageSlot struct {
	mu     sync.Mutex
	client *languageClient // nil until it is opened
}

// languageClient is a connection to one LanguageServer.
type languageClient struct {
	*code.Client
	name string
	idle *time.Timer
	// broken returns an error if the circuit breaker of the server is open now.
	broken func() error
}

func (c *languageClients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, slot := range c.slots {
		slot.mu.Lock()
		if slot.client != nil {
			slot.client.idle.Stop()
			_ = slot.client.Close()
			slot.client = nil
		}
		slot.mu.Unlock()
	}
}

func (c *languageClients) slot(name string) *languageSlot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots == nil {
		c.slots = map[string]*languageSlot{}
	}
	if c.slots[name] == nil {
		c.slots[name] = &languageSlot{}
	}
	return c.slots[name]
}

// find returns a connection to the LanguageServer of a file, and the clean path of the file. server is the name of a LanguageServer; if it is empty, find chooses
// the LanguageServer by the folder and the language of the file.
func (c *languageClients) find(ctx context.Context, t *toolContext, file, server string) (*languageClient, string, error) {
	if file != "" && !filepath.IsAbs(file) {
		return nil, "", fmt.Errorf("%q is not an absolute path", file)
	}
	path := filepath.Clean(file)
	object, err := t.languageServer(ctx, file, server)
	if err != nil {
		return nil, "", err
	}
	if file != "" && !inside(object.Spec.Workspace.Folders, path) {
		return nil, "", fmt.Errorf("%s is outside the workspace of languageserver/%s, which is %s", path, object.Name, strings.Join(object.Spec.Workspace.Folders, ", "))
	}
	found, err := c.connect(ctx, t, object)
	return found, path, err
}

// connect returns the open connection to a LanguageServer, or opens one.
func (c *languageClients) connect(ctx context.Context, t *toolContext, object *v1alpha1.LanguageServer) (*languageClient, error) {
	if object.Spec.State == v1alpha1.StateStopped {
		return nil, fmt.Errorf("languageserver/%s is stopped: call start", object.Name)
	}
	if err := circuitOpen(object); err != nil {
		return nil, err
	}
	slot := c.slot(object.Name)
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if known := slot.client; known != nil {
		select {
		case <-known.Done():
			known.idle.Stop()
			slot.client = nil
		default:
			known.idle.Reset(languageIdle)
			return known, nil
		}
	}
	dialing, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	dialer := &languageServerDialer{app: t.app, to: t.to, key: client.ObjectKeyFromObject(object)}
	conn, err := dialer.dial(dialing)
	if err != nil {
		return nil, fmt.Errorf("connect to languageserver/%s: %w; call get to see its state", object.Name, err)
	}
	made, err := code.New(dialing, conn, object.Spec.Workspace.Folders, object.Spec.Language)
	if err != nil {
		return nil, fmt.Errorf("languageserver/%s: %w; call get to see its state", object.Name, err)
	}
	found := &languageClient{Client: made, name: object.Name, broken: func() error { return t.circuitOpen(object) }}
	found.idle = time.AfterFunc(languageIdle, func() { _ = made.Close() })
	slot.client = found
	return found, nil
}

// circuitOpen returns an error if Berth does not start a server for now, because it has failed too often. A question would wait in vain.
func circuitOpen(object *v1alpha1.LanguageServer) error {
	if breaker := object.Status.Breaker; breaker == nil || breaker.State != v1alpha1.BreakerOpen {
		return nil
	}
	why := "it has failed too often"
	if ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Reason == v1alpha1.ReasonCircuitOpen {
		why = clean(ready.Message) // it states until when, and what to do
	}
	return fmt.Errorf("languageserver/%s does not run and retrying does not help, because its circuit breaker is open: %s Find the cause with logs, correct it, then call restart",
		object.Name, strings.TrimSuffix(why, ".")+".")
}

// circuitOpen reads a server again. It returns no error if the API server does not answer soon, because its caller has another one.
func (t *toolContext) circuitOpen(object *v1alpha1.LanguageServer) error {
	ctx, cancel := context.WithTimeout(context.Background(), outputTimeout)
	defer cancel()
	now := &v1alpha1.LanguageServer{}
	if err := t.to.client.Get(ctx, client.ObjectKeyFromObject(object), now); err != nil {
		return nil
	}
	return circuitOpen(now)
}

// explain names the language server in an error. If its circuit breaker has opened meanwhile, the error states that instead.
func (c *languageClient) explain(err error) error {
	if err != nil {
		if open := c.broken(); open != nil {
			return open
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("languageserver/%s did not answer in time: call get to see its state, or try again with a longer timeout", c.name)
	default:
		return fmt.Errorf("languageserver/%s: %w", c.name, err)
	}
}

// inside reports whether a path is in one of the folders.
func inside(folders []string, path string) bool { return depth(folders, path) > 0 }

// depth returns the length of the longest folder that contains a path, or 0.
func depth(folders []string, path string) int {
	longest := 0
	for _, folder := range folders {
		folder = filepath.Clean(folder)
		if rest, ok := strings.CutPrefix(path, folder); ok && (rest == "" || rest[0] == filepath.Separator || folder == string(filepath.Separator)) {
			longest = max(longest, len(folder))
		}
	}
	return longest
}

// languageServer returns the LanguageServer with a name or, without a name, the one that serves a file: its workspace contains the file, and its language is that of
// the file. A deeper workspace takes precedence.
func (t *toolContext) languageServer(ctx context.Context, file, server string) (*v1alpha1.LanguageServer, error) {
	if server != "" {
		name, err := parseLanguageServer(server)
		if err != nil {
			return nil, err
		}
		_, object, err := t.find(ctx, "languageserver/"+name)
		if err != nil {
			return nil, err
		}
		return object.(*v1alpha1.LanguageServer), nil
	}
	list := &v1alpha1.LanguageServerList{}
	if err := t.to.client.List(ctx, list, client.InNamespace(t.to.namespace)); err != nil {
		return nil, fmt.Errorf("list languageservers: %w", err)
	}
	var best []*v1alpha1.LanguageServer
	highest := 0
	for i := range list.Items {
		object := &list.Items[i]
		score := 1
		if file != "" {
			score = fit(object, filepath.Clean(file))
		}
		if !t.mayShow(object) || score == 0 || score < highest {
			continue
		}
		if score > highest {
			best, highest = nil, score
		}
		best = append(best, object)
	}
	switch len(best) {
	case 0:
		return nil, fmt.Errorf("no LanguageServer in %s serves %s: create one with apply, for example with name languageserver/gopls, command [\"gopls\"], language go and "+
			"the folder of the project as workingDir", t.scope(), file)
	case 1:
		return best[0], nil
	}
	var names []string
	for _, object := range best {
		names = append(names, object.Name)
	}
	return nil, fmt.Errorf("several LanguageServers are suitable: set server to one of %s", strings.Join(names, ", "))
}

// fit returns how well a LanguageServer suits a file; 0 means not at all.
func fit(object *v1alpha1.LanguageServer, path string) int {
	folder := depth(object.Spec.Workspace.Folders, path)
	language := code.Language(path)
	if folder == 0 || language != "" && !code.Serves(object.Spec.Language, language) {
		return 0
	}
	return folder
}
