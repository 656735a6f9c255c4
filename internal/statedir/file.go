// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrDamaged is the error for a file with invalid contents.
var ErrDamaged = errors.New("the file is damaged")

// maxFile is the maximum number of bytes that ReadJSON reads. The largest file has a few KiB.
const maxFile = 1 << 20

// Write replaces a file atomically: readers see either the old or the new content. Only the owner can read the file. Write creates missing directories with
// mode 0700.
func Write(path string, data []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = write(path, data, false, os.Rename)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// WriteJSON replaces a file with the JSON of value atomically. With sync the new content also survives a power failure. WriteJSON creates no directory.
func WriteJSON(path string, value any, sync bool) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	if sync {
		return write(path, data, true, os.Rename)
	}
	return write(path, data, false, exchange)
}

// write writes the new content to a temporary file, which the function move puts in the place of path.
func write(path string, data []byte, sync bool, move func(from, to string) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil && sync {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = move(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// ReadJSON reads a file written by WriteJSON. It returns false if the file does not exist. The error wraps ErrDamaged if the content is invalid.
func ReadJSON(path string, value any) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	_ = file.Close()
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return true, nil
}
