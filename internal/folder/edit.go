// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// Change is a new content for a regular file below a folder.
type Change struct {
	Dir, Name     string
	Before, After []byte
}

// ReplaceAll replaces the contents of several files, or of none of them. The error wraps ErrChanged if the content of a file is not Before. The files keep their
// owner, mode and links. Two calls that change files in the same folders wait for each other, also in different processes, until the context is done or for at
// most lockPatience.
//
// Each new content is first written to a temporary file beside its file, so a full disk or a file that is not writable changes nothing. Then the names of the two
// files are exchanged. A file that would lose links, attributes or its owner is written in place instead. If a step fails, the earlier ones are undone. If the process
// is killed between two steps, some files have the new content, and the temporary files remain.
func ReplaceAll(ctx context.Context, changes []Change) error {
	e := &edit{roots: map[string]*os.Root{}}
	err := e.prepare(ctx, changes)
	if err == nil {
		err = e.commit()
	}
	return errors.Join(err, e.end())
}

// Replace replaces the content of a regular file below a folder, like ReplaceAll.
func Replace(dir, name string, before, after []byte) error {
	return ReplaceAll(context.Background(), []Change{{dir, name, before, after}})
}

// edit is one call of ReplaceAll.
type edit struct {
	roots map[string]*os.Root
	files []*edited
	locks []*os.File
}

func (e *edit) root(dir string) (*os.Root, error) {
	if known := e.roots[dir]; known != nil {
		return known, nil
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		e.roots[dir] = root
	}
	return root, err
}

// prepare locks the folders, checks the files, and writes the temporary files. It changes no content.
func (e *edit) prepare(ctx context.Context, changes []Change) error {
	for _, change := range changes {
		root, err := e.root(change.Dir)
		if err != nil {
			return err
		}
		e.files = append(e.files, &edited{Change: change, root: root})
	}
	if err := e.lock(ctx); err != nil {
		return err
	}
	for _, file := range e.files {
		if err := file.prepare(); err != nil {
			return err
		}
	}
	return nil
}

// commit writes the new content of all files. If that fails, it restores the old content.
func (e *edit) commit() error {
	for i, file := range e.files {
		err := file.turn(file.Before, file.After)
		if err == nil {
			continue
		}
		for _, earlier := range slices.Backward(e.files[:i]) {
			if undone := earlier.turn(earlier.After, earlier.Before); undone != nil {
				err = errors.Join(err, fmt.Errorf("restore %s: %w", earlier.path(), undone))
			}
		}
		return err
	}
	return nil
}

// end removes the temporary files and releases the locks.
func (e *edit) end() error {
	var errs []error
	for _, file := range e.files {
		if file.spare != "" {
			errs = append(errs, file.root.Remove(file.spare))
		}
	}
	for _, lock := range e.locks {
		errs = append(errs, lock.Close())
	}
	for _, root := range e.roots {
		errs = append(errs, root.Close())
	}
	return errors.Join(errs...)
}

// edited is one file of an edit.
type edited struct {
	Change
	root *os.Root
	// spare is the temporary file with the new content and, once the names are exchanged, with the old one. It is empty if the file is written in place.
	spare string
}

// prepare checks that the file can be changed and has the expected content, and writes the temporary file.
func (f *edited) prepare() error {
	file, err := open(f.root, f.Name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := expect(file, f.Before); err != nil {
		return err
	}
	spare := filepath.Join(filepath.Dir(f.Name), "."+filepath.Base(f.Name)+".berth-"+strconv.FormatUint(rand.Uint64(), 36)+"~")
	next, err := f.root.OpenFile(spare, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil // only the file is writable, not its folder
	}
	if err != nil {
		return err
	}
	f.spare = spare
	_, err = next.Write(f.After)
	alike := err == nil && imitate(next, file)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil || alike {
		return err
	}
	f.spare = ""
	return f.root.Remove(spare)
}

// imitate copies the owner and the mode of another file. It reports whether the file can then replace the other one without a loss.
func imitate(file, other *os.File) bool {
	want, err := other.Stat()
	if err != nil {
		return false
	}
	status, ok := want.Sys().(*syscall.Stat_t)
	if !ok || status.Nlink > 1 {
		return false
	}
	_ = file.Chown(int(status.Uid), int(status.Gid)) // compared below
	_ = file.Chmod(want.Mode())
	has, err := file.Stat()
	if err != nil {
		return false
	}
	now, ok := has.Sys().(*syscall.Stat_t)
	return ok && now.Uid == status.Uid && now.Gid == status.Gid && has.Mode() == want.Mode() && bytes.Equal(attributes(file), attributes(other))
}

func (f *edited) path() string { return filepath.Join(f.root.Name(), f.Name) }

// turn replaces the content from with the content to. It returns ErrChanged if the file has another content.
func (f *edited) turn(from, to []byte) error {
	if f.spare != "" {
		err := f.exchange(from)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		spare := f.spare
		f.spare = ""
		if err := f.root.Remove(spare); err != nil {
			return err
		}
	}
	file, err := open(f.root, f.Name, os.O_RDWR)
	if err != nil {
		return err
	}
	return errors.Join(replace(file, from, to), file.Close())
}

// exchange exchanges the file and the temporary file. If another program has changed the file until then, the exchange is reversed.
func (f *edited) exchange(before []byte) error {
	dir, err := f.root.Open(filepath.Dir(f.Name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	name, spare := filepath.Base(f.Name), filepath.Base(f.spare)
	if err := exchange(dir, name, spare); err != nil {
		return fmt.Errorf("replace %s: %w", f.path(), err)
	}
	old, err := open(f.root, f.spare, os.O_RDONLY)
	if err == nil {
		err = errors.Join(expect(old, before), old.Close())
	}
	if err == nil {
		return nil
	}
	if reversed := exchange(dir, name, spare); reversed != nil {
		f.spare = "" // it is the only copy of the content
		return fmt.Errorf("%s has changed, and its content is now in %s: %w", f.path(), spare, errors.Join(err, reversed))
	}
	return fmt.Errorf("%s: %w", f.path(), ErrChanged)
}

// expect returns ErrChanged if a file does not have the expected content.
func expect(file *os.File, content []byte) error {
	now, err := io.ReadAll(io.NewSectionReader(file, 0, int64(len(content))+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(now, content) {
		return fmt.Errorf("%s: %w", file.Name(), ErrChanged)
	}
	return nil
}

// replace replaces the content of a file in place. The part that needs more space is written first, so a full disk changes nothing.
func replace(file *os.File, before, after []byte) error {
	if err := expect(file, before); err != nil {
		return err
	}
	if grown := after[min(len(before), len(after)):]; len(grown) > 0 {
		if _, err := file.WriteAt(grown, int64(len(before))); err != nil {
			return errors.Join(err, file.Truncate(int64(len(before))))
		}
	}
	if _, err := file.WriteAt(after[:min(len(before), len(after))], 0); err != nil {
		_, restored := file.WriteAt(before, 0)
		return errors.Join(err, restored, file.Truncate(int64(len(before))))
	}
	return file.Truncate(int64(len(after)))
}
