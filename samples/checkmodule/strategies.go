// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Variables that contain the path of the results of an earlier phase.
const (
	strategized = "BERTH_RESULTS_STRATEGIZE"
	executed    = "BERTH_RESULTS_EXECUTE"
)

// source is a file of the module. Path is relative to the module.
type source struct {
	Path, Package string
	Lines         int
}

// list finds the Go files of the module, which the other strategies check.
func list(j *job) error {
	var found []source
	err := filepath.WalkDir(j.module, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != j.module && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(j.module, path)
		found = append(found, source{inside, file.Name.Name, bytes.Count(text, []byte("\n"))})
		return err
	})
	if err != nil {
		return fmt.Errorf("list the module: %w", err)
	}
	if len(found) == 0 {
		return errors.New("no Go files in " + j.module)
	}
	return leave(some(len(found), "Go file"), "files.json", found)
}

// finding is a place in the module to report.
type finding struct {
	Path string
	Line int
	Text string
}

// search finds marked comments, and exported functions without a comment.
func search(j *job) error {
	found := []finding{}
	err := j.each(func(s source, set *token.FileSet, file *ast.File) {
		add := func(at token.Pos, text string) { found = append(found, finding{s.Path, set.Position(at).Line, text}) }
		for _, group := range file.Comments {
			for _, comment := range group.List {
				for _, marker := range j.markers {
					if strings.Contains(comment.Text, marker) {
						add(comment.Pos(), strings.TrimSpace(strings.TrimLeft(comment.Text, "/*")))
					}
				}
			}
		}
		if strings.HasSuffix(s.Path, "_test.go") {
			return
		}
		for _, declared := range file.Decls {
			if function, ok := declared.(*ast.FuncDecl); ok && function.Name.IsExported() && function.Doc == nil {
				add(function.Pos(), function.Name.Name+" has no comment")
			}
		}
	})
	if err != nil {
		return err
	}
	for _, f := range found {
		fmt.Printf("%s:%d: %s\n", f.Path, f.Line, f.Text)
	}
	return leave(some(len(found), "finding"), "findings.json", found)
}

// about describes a package.
type about struct {
	Synopsis         string
	Files, Functions int
}

// summarize collects the synopsis and the size of each package.
func summarize(j *job) error {
	packages := map[string]about{}
	err := j.each(func(s source, _ *token.FileSet, file *ast.File) {
		if strings.HasSuffix(s.Path, "_test.go") {
			return
		}
		known := packages[s.Package]
		known.Files++
		if file.Doc != nil {
			known.Synopsis = new(doc.Package).Synopsis(file.Doc.Text())
		}
		for _, declared := range file.Decls {
			if _, ok := declared.(*ast.FuncDecl); ok {
				known.Functions++
			}
		}
		packages[s.Package] = known
	})
	if err != nil {
		return err
	}
	return leave(some(len(packages), "package"), "packages.json", packages)
}

// each parses the listed files and calls do for each of them.
func (j *job) each(do func(source, *token.FileSet, *ast.File)) error {
	var files []source
	if err := load(strategized, "list-files", "files.json", &files); err != nil {
		return err
	}
	for _, s := range files {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, filepath.Join(j.module, s.Path), nil, parser.ParseComments)
		if err != nil {
			return fmt.Errorf("read the module: %w", err)
		}
		do(s, set, file)
	}
	return nil
}
