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
	"syscall"
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

// ReadPrivate returns the content of a file that contains a secret. It returns an error if the file is not a regular file of at most limit bytes, belongs to another
// user, or can be accessed by other users. The checks and the read use one descriptor.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe does not block
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	uid, known := owner(info)
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case known && uid != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, but berth runs as user %d", path, uid, os.Geteuid())
	case known && info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be accessed by other users (mode %04o): run chmod 600, and change the secret in it", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return data, err
}

// CreatePrivate creates a file that only the owner can access. It returns an error if the file exists.
func CreatePrivate(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}
