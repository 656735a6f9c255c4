// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/folder"
)

// files reads and writes the files that the answers of a language server name. The caller has the permissions of the user, and the workspace or the server may be
// hostile, so only regular files below known folders are opened.
type files struct {
	// workspace are the folders of the workspace. libraries are folders outside of it whose text may be shown, such as the sources of a toolchain.
	workspace, libraries []string
}

// open opens a file of the workspace for reading. A symbolic link is followed if it leads to a file of the workspace.
func (f *files) open(path string) (*os.File, error) {
	return f.openIn(f.workspace, path)
}

// openPlace opens a file of the workspace or of a library for reading.
func (f *files) openPlace(path string) (*os.File, error) {
	return f.openIn(slices.Concat(f.workspace, f.libraries), path)
}

func (f *files) openIn(folders []string, path string) (*os.File, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	for _, dir := range folders {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			continue // the folder does not exist
		}
		if name, inside := below(dir, resolved); inside {
			return folder.Open(dir, name)
		}
	}
	if resolved != path {
		return nil, fmt.Errorf("%s leads to %s, which is outside the workspace", path, resolved)
	}
	return nil, f.outside(path)
}

// writable returns the folder of the workspace that contains a file, and the path of the file below it. Symbolic links below the folder are not followed.
func (f *files) writable(path string) (dir, name string, err error) {
	for _, dir := range f.workspace {
		if name, inside := below(dir, path); inside {
			return dir, name, nil
		}
	}
	return "", "", f.outside(path)
}

// before returns the content of a file that an edit will change.
func (f *files) before(path string) ([]byte, error) {
	dir, name, err := f.writable(path)
	if err != nil {
		return nil, err
	}
	text, err := folder.Read(dir, name, maxFile)
	return text, unwritable(path, err)
}

// unwritable explains why Berth does not edit a file.
func unwritable(path string, err error) error {
	var link *folder.LinkError
	if errors.As(err, &link) {
		return fmt.Errorf("cannot edit %s: %w: name the file that the link leads to, if it is in the workspace", path, err)
	}
	return err
}

func (f *files) outside(path string) error {
	return fmt.Errorf("%s is outside the workspace, which is %s", path, strings.Join(f.workspace, ", "))
}

// below returns the path of a file relative to a folder that contains it.
func below(dir, path string) (name string, inside bool) {
	name, err := filepath.Rel(dir, path)
	return name, err == nil && filepath.IsLocal(name)
}

// libraries returns the folders outside of a workspace from which the text of a place may come. docs/mcp.md lists them. A variable that is not an absolute path
// adds no folder.
func libraries() []string {
	home, _ := os.UserHomeDir() // without a home directory, only the system has libraries
	in := func(variable, standard string) string {
		if value := os.Getenv(variable); value != "" {
			return filepath.SplitList(value)[0] // GOPATH can be a list, whose first entry has the module cache
		}
		return filepath.Join(home, standard)
	}
	packages := func(variable, dir string, below ...string) (all []string) {
		for _, name := range below {
			all = append(all, filepath.Join(in(variable, dir), name))
		}
		return all
	}
	all := slices.Concat(
		packages("GOMODCACHE", "go/pkg/mod", ""), packages("GOPATH", "go", "pkg/mod"),
		packages("CARGO_HOME", ".cargo", "registry/src", "git/checkouts"), packages("RUSTUP_HOME", ".rustup", "toolchains"),
		[]string{filepath.Join(home, ".local/lib"), "/usr/local/go/src", "/usr/include", "/usr/local/include", "/usr/lib", "/usr/local/lib"},
	)
	if root := os.Getenv("GOROOT"); root != "" {
		all = append(all, filepath.Join(root, "src"))
	}
	if program, err := exec.LookPath("go"); err == nil {
		if program, err = filepath.EvalSymlinks(program); err == nil {
			sources := filepath.Join(filepath.Dir(program), "..", "src")
			if _, err := os.Stat(filepath.Join(sources, "runtime", "proc.go")); err == nil { // go can be a script in another folder
				all = append(all, sources)
			}
		}
	}
	return slices.DeleteFunc(all, func(dir string) bool { return !filepath.IsAbs(dir) })
}

// missing reports whether an error means that a file does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
