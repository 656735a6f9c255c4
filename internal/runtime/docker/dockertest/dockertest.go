// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dockertest starts a Docker Engine for tests that is independent of other engines on the machine, and removes everything that this engine creates.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/moby/client"
)

// Patience is how long an engine may take for any operation on a busy machine.
const Patience = 2 * time.Minute

// ErrUnavailable is the error if no engine can be started on this machine.
var ErrUnavailable = errors.New("no Docker Engine can be started here")

// Image creates an image whose entry point is a static program, which is copied to /workload. Otherwise the file system of the image contains only the empty
// directories /tmp and /work. changes are more instructions of a Dockerfile.
func (e *Engine) Image(ctx context.Context, name, program string, changes ...string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make the image %s: %w", name, err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"tmp/", "work/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o1777}); err != nil {
			return err
		}
	}
	err = w.WriteHeader(&tar.Header{Name: "workload", Mode: 0o755, Size: int64(len(binary))})
	if err == nil {
		_, err = w.Write(binary)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("make the image %s: %w", name, err)
	}
	api, err := e.Client()
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	answer, err := api.ImageImport(ctx, client.ImageImportSource{Source: &layer, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: append([]string{`ENTRYPOINT ["/workload"]`, "ENV FROM_IMAGE=yes"}, changes...)})
	if err != nil {
		return fmt.Errorf("import the image %s: %w", name, err)
	}
	said, err := io.ReadAll(answer)
	if err = errors.Join(err, answer.Close()); err != nil {
		return fmt.Errorf("import the image %s: %w", name, err)
	}
	if bytes.Contains(said, []byte(`"error"`)) {
		return fmt.Errorf("import the image %s: %s", name, said)
	}
	return nil
}

// Client returns a client of the engine. The caller closes it.
func (e *Engine) Client() (*client.Client, error) {
	return client.New(client.WithHost(e.Host))
}
