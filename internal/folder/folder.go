// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package folder reads and writes files of a folder whose content is not trusted, such as a repository that a user has just cloned. It follows no symbolic link
// below the folder, so a file name cannot lead to another file, and it opens only regular files, so a pipe or a device cannot block it.
package folder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// LinkError is the error for a file that is a symbolic link, or that is in a folder that is one.
type LinkError struct {
	// Path is the path of the link, relative to the folder. Target is the content of the link.
	Path, Target string
}

// Error implements error.
func (e *LinkError) Error() string {
	return fmt.Sprintf("%q is a symbolic link to %q, which Berth does not follow", e.Path, e.Target)
}

var (
	// ErrNotRegular is the error for a directory, a pipe, a device or a socket in the place of a file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrChanged is the error for a file that does not have the expected content.
	ErrChanged = errors.New("the file has changed in the meantime")
)

// Open opens a regular file below a folder for reading. The error wraps fs.ErrNotExist if the file does not exist.
func Open(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return open(root, name, os.O_RDONLY)
}

// Read returns the content of a regular file below a folder. It returns an error if the file has more than limit bytes.
func Read(dir, name string, limit int64) ([]byte, error) {
	file, err := Open(dir, name)
	if err != nil {
		return nil, err
	}
	text, err := Content(file, limit)
	return text, errors.Join(err, file.Close())
}

// Content returns the content of an open file. It returns an error if the file has more than limit bytes.
func Content(file *os.File, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes, which is the limit", file.Name(), limit)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Create creates a file below a folder, and the missing directories on its path. The error wraps fs.ErrExist if something with this name exists.
func Create(dir, name string, text []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	switch _, err := examine(root, name); {
	case err == nil:
		return fmt.Errorf("create %s: %w", name, fs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	// O_EXCL follows no link in the last element of the path.
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, root.Remove(name)) // a part of a file would look like the whole
	}
	return nil
}

// open opens a regular file. The file must be the one that examine has seen, because another process may replace it with a link in between.
func open(root *os.Root, name string, flag int) (*os.File, error) {
	seen, err := examine(root, name)
	if err != nil {
		return nil, err
	}
	// With O_NONBLOCK, opening a pipe returns immediately.
	file, err := root.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil && !os.SameFile(seen, opened) {
		err = fmt.Errorf("%s: %w", file.Name(), ErrChanged)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// examine returns the description of a regular file. It returns an error if the file or a directory on its path is a symbolic link, or if it is not a regular file.
func examine(root *os.Root, name string) (fs.FileInfo, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q is not a path below %s", name, root.Name())
	}
	parts := strings.Split(filepath.Clean(name), string(filepath.Separator))
	for i := range parts {
		path := filepath.Join(parts[:i+1]...)
		info, err := root.Lstat(path)
		switch {
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := root.Readlink(path) // the target is only for the message
			return nil, &LinkError{Path: path, Target: target}
		case i == len(parts)-1 && info.Mode().IsRegular():
			return info, nil
		case i == len(parts)-1 || !info.IsDir():
			return nil, fmt.Errorf("%s: %w", filepath.Join(root.Name(), path), ErrNotRegular)
		}
	}
	return nil, fs.ErrNotExist // parts is never empty
}
