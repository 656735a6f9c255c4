// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package union

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/screen"
)

// Listeners implements runtime.Inspector. Only the base has sockets on this machine that can be looked at.
func (u *Union) Listeners(ctx context.Context, uid types.UID) ([]runtime.Listener, error) {
	inspector, ok := u.base.(runtime.Inspector)
	if !ok {
		return nil, runtime.ErrNotFound
	}
	return inspector.Listeners(ctx, uid)
}

// PortOwner implements runtime.Inspector.
func (u *Union) PortOwner(ctx context.Context, port int32) (*runtime.PortOwner, error) {
	inspector, ok := u.base.(runtime.Inspector)
	if !ok {
		return nil, nil
	}
	return inspector.PortOwner(ctx, port)
}

// OpenLog implements runtime.Logger.
func (u *Union) OpenLog(ctx context.Context, uid types.UID) (runtime.Log, error) {
	logger, err := ability[runtime.Logger](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return nil, err
	}
	return logger.OpenLog(ctx, uid)
}

// Attach implements runtime.Attacher.
func (u *Union) Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	attacher, err := ability[runtime.Attacher](ctx, u, uid, runtime.ErrNoTerminal)
	if err != nil {
		return err
	}
	return attacher.Attach(ctx, uid, in, out, resize)
}

// Type implements runtime.Keyboard.
func (u *Union) Type(ctx context.Context, uid types.UID, input []byte) error {
	keyboard, err := ability[runtime.Keyboard](ctx, u, uid, runtime.ErrNoTerminal)
	if err != nil {
		return err
	}
	return keyboard.Type(ctx, uid, input)
}

// LastActivity implements runtime.Watcher.
func (u *Union) LastActivity(ctx context.Context, uid types.UID) (time.Time, error) {
	watcher, err := ability[runtime.Watcher](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return time.Time{}, err
	}
	return watcher.LastActivity(ctx, uid)
}

// Watch implements runtime.Watcher.
func (u *Union) Watch(ctx context.Context, uid types.UID) error {
	watcher, err := ability[runtime.Watcher](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return err
	}
	return watcher.Watch(ctx, uid)
}

// Capture implements runtime.Screen.
func (u *Union) Capture(ctx context.Context, uid types.UID) (screen.View, error) {
	backend, err := ability[runtime.Screen](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return screen.View{}, err
	}
	return backend.Capture(ctx, uid)
}

// Input implements runtime.Foreground.
func (u *Union) Input(ctx context.Context, uid types.UID) (screen.Input, error) {
	foreground, err := ability[runtime.Foreground](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return screen.Input{}, err
	}
	return foreground.Input(ctx, uid)
}

// Members implements runtime.Census.
func (u *Union) Members(ctx context.Context, uid types.UID) ([]runtime.Member, error) {
	census, err := ability[runtime.Census](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return nil, err
	}
	return census.Members(ctx, uid)
}

// Release implements runtime.Releaser, where the UID is found.
func (u *Union) Release(ctx context.Context, uid types.UID) error {
	releaser, err := ability[runtime.Releaser](ctx, u, uid, runtime.ErrNotFound)
	if err != nil {
		return err
	}
	return releaser.Release(ctx, uid)
}

// Tidy implements runtime.Tidier: a backend that keeps nothing has nothing to end.
func (u *Union) Tidy(ctx context.Context, uid types.UID) error {
	backend, _, err := u.find(ctx, uid)
	if err != nil {
		return err
	}
	if tidier, keeps := backend.(runtime.Tidier); keeps {
		return tidier.Tidy(ctx, uid)
	}
	return nil
}

// ability gives the backend that has the UID as what it is asked to be, or the error for a backend that can't be that.
func ability[T any](ctx context.Context, u *Union, uid types.UID, otherwise error) (T, error) {
	var none T
	backend, _, err := u.find(ctx, uid)
	if err != nil {
		return none, err
	}
	able, ok := backend.(T)
	if !ok {
		return none, fmt.Errorf("the runtime of %s cannot do that: %w", uid, otherwise)
	}
	return able, nil
}
