// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// goplsVersion is the version to build for the tests if make has not built gopls.
const goplsVersion = "golang.org/x/tools/gopls@v0.23.0"

// languageProject is a language, a language server for it, and a workspace. In the workspace, the file main calls the function greet, and the file helper
// defines this function.
type languageProject struct {
	language string
	// command returns the argv of the server. options returns its initializationOptions.
	command func(context.Context) []string
	options func(context.Context) any
	// settings answers workspace/configuration requests.
	settings string

	files        map[string]string
	main, helper string
	// comment is the text that starts a comment in the language. hover is a part of the hover text for the function greet. references is the number of
	// occurrences of greet in all files.
	comment    string
	hover      string
	references int
	// mistake is a text for the file main that contains an error. complaint is a part of the diagnostic that the server reports for this error.
	mistake, complaint string
}

var languageProjects = map[string]languageProject{
	"gopls": {
		language: "go", comment: "// ", main: "main.go", helper: "helper.go", hover: "func greet(name string) string", references: 2,
		command: func(ctx context.Context) []string { return []string{gopls(ctx)} },
		files: map[string]string{
			"go.mod":    "module example.test/hello\n\ngo 1.24\n",
			"main.go":   "package main\n\nfunc main() {\n\tprintln(greet(\"world\"))\n}\n",
			"helper.go": "package main\n\nfunc greet(name string) string { return \"hello \" + name }\n",
		},
		mistake: "package main\n\nfunc main() {\n\tprintln(greeted(\"world\"))\n}\n", complaint: "undefined: greeted",
	},
	"pyright": {
		language: "python", comment: "# ", main: "main.py", helper: "helper.py", hover: "greet(name: str) -> str", references: 3,
		command: func(ctx context.Context) []string {
			return []string{npmProgram(ctx, "pyright-langserver"), "--stdio"}
		},
		files: map[string]string{
			"main.py":   "from helper import greet\n\nprint(greet(\"world\"))\n",
			"helper.py": "def greet(name: str) -> str:\n    return \"hello \" + name\n",
		},
		mistake: "from helper import greet\n\nprint(greeted(\"world\"))\n", complaint: "\"greeted\" is not defined",
	},
	"bash-language-server": {
		language: "shellscript", comment: "# ", main: "main.sh", helper: "helper.sh", hover: "Function: **greet**", references: 2,
		command: func(ctx context.Context) []string {
			return []string{npmProgram(ctx, "bash-language-server"), "start"}
		},
		settings: `{"bashIde": {"enableSourceErrorDiagnostics": true}}`,
		files: map[string]string{
			"main.sh":   "#!/usr/bin/env bash\nsource ./helper.sh\ngreet world\n",
			"helper.sh": "#!/usr/bin/env bash\ngreet() {\n  echo \"hello $1\"\n}\n",
		},
		mistake: "#!/usr/bin/env bash\nsource \"$1\"\ngreet world\n", complaint: "ource command could not be analyzed",
	},
	"clangd": {
		language: "cpp", comment: "// ", main: "main.cpp", helper: "helper.h", hover: "greet", references: 2,
		command: func(context.Context) []string {
			need.Programs(GinkgoT(), "clangd")
			return []string{"clangd", "--background-index"}
		},
		files: map[string]string{
			"compile_flags.txt": "-std=c++17\n",
			"main.cpp":          "#include \"helper.h\"\n\nint main() { return greet(1); }\n",
			"helper.h":          "#pragma once\n\ninline int greet(int count) { return count; }\n",
		},
		mistake: "#include \"helper.h\"\n\nint main() { return greeted(1); }\n", complaint: "undeclared identifier 'greeted'",
	},
	"typescript-language-server": {
		language: "typescript", comment: "// ", main: "main.ts", helper: "helper.ts", hover: "greet(name: string): string", references: 3,
		command: func(ctx context.Context) []string {
			return []string{npmProgram(ctx, "typescript-language-server"), "--stdio"}
		},
		options: func(ctx context.Context) any {
			lib := filepath.Join(installProject(ctx, languageServers), "node_modules", "typescript", "lib")
			return map[string]any{"tsserver": map[string]any{"path": lib}, "disableAutomaticTypingAcquisition": true}
		},
		files: map[string]string{
			"tsconfig.json": "{\"compilerOptions\": {\"strict\": true, \"module\": \"esnext\", \"target\": \"esnext\", \"types\": []}}\n",
			"main.ts":       "import { greet } from \"./helper\";\n\nexport const text = greet(\"world\");\n",
			"helper.ts":     "export function greet(name: string): string {\n  return \"hello \" + name;\n}\n",
		},
		mistake: "import { greet } from \"./helper\";\n\nexport const text = greeted(\"world\");\n", complaint: "Cannot find name 'greeted'",
	},
}

// languageServers is the npm project that installs the language servers.
const languageServers = "test/e2e/projects/languageservers"

func npmProgram(ctx context.Context, name string) string {
	GinkgoHelper()
	return filepath.Join(installProject(ctx, languageServers), "node_modules", ".bin", name)
}

// gopls returns the path of the program gopls. If make has not built the program, gopls builds it once into the user's cache.
func gopls(ctx context.Context) string {
	GinkgoHelper()
	built := filepath.Join(suiteBerth.root, "bin", "gopls")
	if _, err := os.Stat(built); err == nil {
		return built
	}
	cache, err := os.UserCacheDir()
	Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(cache, "berth-e2e", filepath.Base(goplsVersion))
	program := filepath.Join(dir, "gopls")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	By("building gopls")
	cmd := exec.CommandContext(ctx, "go", "install", goplsVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "go install %s:\n%s", goplsVersion, text)
	return program
}

// languageServer returns an object for a server with a separate workspace, and the folder of that workspace.
func (l languageProject) languageServer(ctx context.Context, name string) (s *testObject, folder string) {
	GinkgoHelper()
	folder, err := filepath.EvalSymlinks(GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	for file, text := range l.files {
		Expect(os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600)).To(Succeed())
	}
	spec := v1alpha1.LanguageServerSpec{
		ProcessSpec: processSpec("", l.command(ctx)), Language: l.language, Workspace: v1alpha1.Workspace{Folders: []string{folder}},
	}
	// On a busy machine, a server may need longer to start than the default timeout.
	spec.Hold.TimeoutSeconds = new(int32)
	*spec.Hold.TimeoutSeconds = 180
	if l.options != nil {
		options, err := json.Marshal(l.options(ctx))
		Expect(err).NotTo(HaveOccurred())
		spec.InitializationOptions = &runtime.RawExtension{Raw: options}
	}
	if l.settings != "" {
		spec.Settings = &runtime.RawExtension{Raw: []byte(l.settings)}
	}
	return newTestObject(&v1alpha1.LanguageServer{Spec: spec}, "languageserver", name), folder
}
