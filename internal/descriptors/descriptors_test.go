// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package descriptors

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// inherited returns a descriptor as a program inherits it from a shell: the programs that it starts inherit it, too.
func inherited(t *testing.T) int {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	fd, err := syscall.Dup(int(file.Fd())) // without close-on-exec, unlike the original
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = syscall.Close(fd); _ = file.Close() })
	return fd
}

// reaches reports whether a program that this process starts inherits a descriptor.
func reaches(t *testing.T, fd int) bool {
	t.Helper()
	return exec.CommandContext(t.Context(), "/bin/sh", "-c", fmt.Sprintf("[ -e /dev/fd/%d ]", fd)).Run() == nil
}

func TestCloseOnExec_KeepsInheritedDescriptorsFromPrograms(t *testing.T) {
	for name, mark := range map[string]func(){"by a range": CloseOnExec, "by a list": markListed} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			fd := inherited(t)
			g.Expect(reaches(t, fd)).To(BeTrue(), "the descriptor is one that programs inherit")
			mark()
			g.Expect(reaches(t, fd)).To(BeFalse())
			_, err := syscall.Write(fd, []byte("x"))
			g.Expect(err).NotTo(HaveOccurred(), "this process keeps the descriptor")
			g.Expect(reaches(t, 2)).To(BeTrue(), "the standard descriptors are inherited")
		})
	}
}

// A program of Berth marks the descriptors before it does anything else, because a program that it starts earlier would inherit them.
func TestPrograms_MarkInheritedDescriptorsFirst(t *testing.T) {
	programs, err := filepath.Glob("../../cmd/*/main.go")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(len(programs)).To(BeNumerically(">=", 5))
	for _, path := range programs {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			g := NewWithT(t)
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			g.Expect(err).NotTo(HaveOccurred())
			var first ast.Stmt
			for _, declared := range file.Decls {
				if function, is := declared.(*ast.FuncDecl); is && function.Name.Name == "main" && function.Recv == nil {
					first = function.Body.List[0]
				}
			}
			statement, is := first.(*ast.ExprStmt)
			g.Expect(is).To(BeTrue(), "main begins with a call")
			call, is := statement.X.(*ast.CallExpr)
			g.Expect(is).To(BeTrue(), "main begins with a call")
			var called string
			switch function := call.Fun.(type) {
			case *ast.SelectorExpr:
				called = function.Sel.Name
			case *ast.Ident: // berth-apiserver is a module of its own
				called = function.Name
			}
			g.Expect(strings.ToLower(called)).To(Equal("closeonexec"))
		})
	}
}
