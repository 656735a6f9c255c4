// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"io"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/printable"
)

const (
	// outputTimeout bounds how long berth status waits for the output of a process.
	outputTimeout = 3 * time.Second
	// outputRead and outputBytes bound the lines and bytes that are read.
	outputRead  = 60
	outputBytes = 1 << 20
)

// lastOutput returns the last lines of output of an object, which may show the cause of a failure. It returns nil if they cannot be read.
func (a *app) lastOutput(ctx context.Context, to *connection, ref reference) []string {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	text := to.tail(ctx, ref)
	shown := printable.Tail(text)
	if len(shown) == 0 && text != nil {
		return []string{"  Last output: none; the program has written nothing."}
	}
	if len(shown) == 0 {
		return nil
	}
	for i := range shown {
		shown[i] = "    " + shown[i]
	}
	return append([]string{"  Last output:"}, shown...)
}

// tail returns the end of the output, as much as it could read before the context was done. If it can read none, it returns the end that the status contains.
func (c *connection) tail(ctx context.Context, ref reference) []byte {
	object, err := c.get(ctx, ref)
	if err != nil {
		return nil
	}
	text := c.readTail(ctx, ref, object)
	if end := object.GetProcessStatus().LastExit; len(text) == 0 && end != nil && end.LogTail != "" {
		return []byte(end.LogTail)
	}
	return text
}

// readTail reads the end of the output from the API server or the manager.
func (c *connection) readTail(ctx context.Context, ref reference, object process.Object) []byte {
	if inPod(object) {
		api, err := kubernetes.NewForConfig(c.config)
		if err != nil {
			return nil
		}
		newest, err := c.newestPod(ctx, object)
		if err != nil || newest == nil {
			return nil
		}
		var text bytes.Buffer
		from := podOutput{api: api, tail: ptr.To[int64](outputRead), out: &text}
		_, _ = from.print(ctx, newest) // a partial result is still useful
		return text.Bytes()
	}
	manager, err := c.manager(ctx)
	if err != nil {
		return nil
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, c.endpointObject(ref), endpoint.LogOptions{Tail: outputRead})
	if err != nil {
		return nil
	}
	defer func() { _ = stream.Close() }()
	text, _ := io.ReadAll(io.LimitReader(stream, outputBytes)) // a partial result is still useful
	return text
}
