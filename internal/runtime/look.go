// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/terminal"
)

// enough is how many bytes from the end of the output are used to render the screen.
const enough = 64 << 10

// Look returns what the terminal of a UID shows, and how it is read. usual is as for Shown.
func (c Capabilities) Look(ctx context.Context, uid types.UID, usual Terminal) (terminal.Moment, error) {
	view, err := c.Shown(ctx, uid, usual)
	moment := terminal.Moment{View: view}
	moment.Input, moment.Known = c.Input(ctx, uid)
	return moment, err
}

// Input returns how the programs in the foreground read the terminal of a UID. known is false if the backend cannot determine that; input is then zero.
func (c Capabilities) Input(ctx context.Context, uid types.UID) (input facts.Input, known bool) {
	if c.Terminals == nil {
		return facts.Input{}, false
	}
	input, err := c.Terminals.Input(ctx, uid)
	if err != nil {
		return facts.Input{}, false // an older shim, or a program that has just exited
	}
	return input, true
}

// Told returns what the program of a UID has told its terminal; zero if the backend does not know it.
func (c Capabilities) Told(ctx context.Context, uid types.UID) facts.Signals {
	if c.Terminals == nil {
		return facts.Signals{}
	}
	told, err := c.Terminals.Told(ctx, uid)
	if err != nil {
		return facts.Signals{} // an older shim, or a program that has just exited
	}
	return told
}

// Size returns the size of the terminal of a UID. known is false if the backend does not know it.
func (c Capabilities) Size(ctx context.Context, uid types.UID) (size Terminal, known bool) {
	if c.Terminals == nil {
		return Terminal{}, false
	}
	size, err := c.Terminals.Size(ctx, uid)
	return size, err == nil && size.Columns > 0 && size.Rows > 0
}

// Shown returns the screen of the terminal of a UID as the backend reports it. If the backend reports none, Shown renders the screen from the output. usual is
// the size of the terminal if the backend does not know it.
func (c Capabilities) Shown(ctx context.Context, uid types.UID, usual Terminal) (terminal.View, error) {
	if c.Terminals != nil {
		view, err := c.Terminals.Capture(ctx, uid)
		if err == nil || !errors.Is(err, ErrNotFound) && !errors.Is(err, errors.ErrUnsupported) {
			return view, err
		}
	}
	if c.Logs == nil {
		return terminal.View{}, ErrNotFound
	}
	log, err := c.Logs.OpenLog(ctx, uid)
	if err != nil {
		return terminal.View{}, fmt.Errorf("open the output: %w", err)
	}
	defer func() { _ = log.Close() }()
	size, known := c.Size(ctx, uid)
	if !known {
		size = usual
	}
	return draw(log, size)
}

// draw renders the screen from the end of the output.
func draw(log Log, size Terminal) (terminal.View, error) {
	first, end, err := log.Bounds()
	if err != nil {
		return terminal.View{}, fmt.Errorf("read the output: %w", err)
	}
	buffer := make([]byte, min(end-first, enough))
	n, err := log.ReadAt(buffer, end-int64(len(buffer)))
	if err != nil && !errors.Is(err, io.EOF) {
		return terminal.View{}, fmt.Errorf("read the output: %w", err)
	}
	drawn := terminal.New(int(size.Columns), int(size.Rows))
	_, _ = drawn.Write(buffer[:n])
	return drawn.View(), nil
}
