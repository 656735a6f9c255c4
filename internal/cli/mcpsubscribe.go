// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/endpoint"
)

const (
	// maxSubscriptions is the maximum number of resources that the clients of a server subscribe to, because each needs a connection.
	maxSubscriptions = 50
	// notifyEvery is the minimum interval between two notifications about one resource. It is also how long to wait before a failed watch is repeated.
	notifyEvery = time.Second
)

// subscriptions watch the resources that clients subscribed to, and notify the clients of changes.
type subscriptions struct {
	tools *toolContext
	ctx   context.Context // ends all watches
	// notify tells the subscribed clients that the resource has changed.
	notify func(ctx context.Context, uri string)

	mu      sync.Mutex
	watches map[string]*resourceWatch // by URI
}

// resourceWatch is the watch of one resource, for one or more clients.
type resourceWatch struct {
	clients int
	stop    context.CancelFunc
	stopped chan struct{}
}

func newSubscriptions(ctx context.Context, tools *toolContext) *subscriptions {
	return &subscriptions{tools: tools, ctx: ctx, watches: map[string]*resourceWatch{}}
}

// subscribe starts a watch, unless another client has done so.
func (s *subscriptions) subscribe(ctx context.Context, request *mcp.SubscribeRequest) error {
	uri := request.Params.URI
	name, err := s.tools.resourceName(uri)
	if err != nil {
		return err
	}
	ref, _, err := s.tools.find(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: %w", err, mcp.ResourceNotFoundError(uri))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.watches[uri]; known != nil {
		known.clients++
		return nil
	}
	if len(s.watches) >= maxSubscriptions {
		return fmt.Errorf("%s: at most %d resources can be subscribed to at the same time: unsubscribe from others", uri, maxSubscriptions)
	}
	watched := s.tools.watchObject
	if strings.HasSuffix(uri, "/log") {
		watched = s.tools.watchLog
	}
	limited, stop := context.WithCancel(s.ctx)
	started := &resourceWatch{clients: 1, stop: stop, stopped: make(chan struct{})}
	s.watches[uri] = started
	go func() {
		defer close(started.stopped)
		wait.UntilWithContext(limited, func(context.Context) {
			_ = watched(limited, ref, func() { s.notify(limited, uri) }) // a client can read the resource, which returns the cause
		}, notifyEvery)
	}()
	return nil
}

// unsubscribe ends a watch that no client needs any more.
func (s *subscriptions) unsubscribe(_ context.Context, request *mcp.UnsubscribeRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.watches[request.Params.URI]; known != nil {
		if known.clients--; known.clients == 0 {
			known.stop()
			<-known.stopped
			delete(s.watches, request.Params.URI)
		}
	}
	return nil
}

// close ends all watches and waits for them.
func (s *subscriptions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.watches {
		known.stop()
		<-known.stopped
	}
	s.watches = nil
}

// watchObject calls changed when the object has changed, until the API server ends the watch. The first event of a watch is the current state.
func (t *toolContext) watchObject(ctx context.Context, ref reference, changed func()) error {
	stream, err := t.to.client.Watch(ctx, ref.kind.list(), client.InNamespace(t.to.namespace), client.MatchingFields{"metadata.name": ref.name})
	if err != nil {
		return fmt.Errorf("watch %s: %w", ref, err)
	}
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-stream.ResultChan():
			object, is := event.Object.(client.Object)
			if !open || !is {
				return nil // the API server ended the watch or reports an error
			}
			if object.GetName() == ref.name {
				changed()
			}
		}
	}
}

// watchLog calls changed when the output of the object has grown, until the manager ends the stream.
func (t *toolContext) watchLog(ctx context.Context, ref reference, changed func()) error {
	object, err := t.to.get(ctx, ref)
	if err != nil {
		return err
	}
	grown := &growth{clock: t.app.clock.Now, changed: changed}
	err = t.app.copyLogs(ctx, t.to, ref, object, logOptions{LogOptions: endpoint.LogOptions{Follow: true, Tail: 0}}, grown)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// growth calls changed when output arrives, at most once in notifyEvery.
type growth struct {
	clock   func() time.Time
	changed func()
	told    time.Time
}

func (g *growth) Write(text []byte) (int, error) {
	if now := g.clock(); now.Sub(g.told) >= notifyEvery {
		g.told = now
		g.changed()
	}
	return len(text), nil
}
