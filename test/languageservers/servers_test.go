// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

// server is a language server and a project for it.
type server struct {
	language string   // the identifier of the language of the main file
	command  []string // a program without a directory is one of the npm project, unless it is gopls or clangd
	options  map[string]any
	// settings are the settings of the server, by section. Some servers report nothing without them.
	settings map[string]any
	files    map[string]string
	main     string
	// symbol is a word in the main file that the questions are about, and complete a text after whose end completions are requested; empty: none.
	symbol, complete string
	// mistake replaces the text from in the main file. complaint is a part of the diagnostic that the server then sends; empty: the server sends no diagnostics.
	mistake, from, complaint string
	// pulls: the server sends no diagnostics unless they are requested.
	pulls bool
	// understands is a part of the answer to the request ready that shows that the server has read the project; empty: any answer.
	ready, understands string
}

const (
	hover           = "textDocument/hover"
	documentSymbols = "textDocument/documentSymbol"
	completion      = "textDocument/completion"
)

var goFiles = map[string]string{
	"go.mod":    "module example.test/hello\n\ngo 1.24\n",
	"main.go":   "package main\n\nimport \"fmt\"\n\n// Greeter greets.\ntype Greeter struct{ name string }\n\n// Greet returns a greeting.\nfunc (g Greeter) Greet() string { return helper(g.name) }\n\nfunc main() {\n\tg :=  Greeter{name: \"world\"}\n\tfmt.Println(g.Greet())\n}\n",
	"helper.go": "package main\n\nfunc helper(name string) string { return \"hello \" + name }\n",
}

var typescriptFiles = map[string]string{
	"tsconfig.json": "{\"compilerOptions\": {\"strict\": true, \"module\": \"esnext\", \"moduleResolution\": \"bundler\", \"target\": \"esnext\", \"types\": []}}\n",
	"main.ts":       "import { helper } from \"./helper\";\n\n/** Greets. */\nexport class Greeter {\n  constructor(private name: string) {}\n  /** Returns a greeting. */\n  greet(): string {\n    return helper(this.name);\n  }\n}\n\nexport const text =  new Greeter(\"world\").greet();\n",
	"helper.ts":     "export function helper(name: string): string {\n  return \"hello \" + name;\n}\n",
}

var pythonFiles = map[string]string{
	"main.py":   "from helper import helper\n\n\nclass Greeter:\n    \"\"\"Greets.\"\"\"\n\n    def __init__(self, name: str) -> None:\n        self.name = name\n\n    def greet(self) -> str:\n        \"\"\"Returns a greeting.\"\"\"\n        return helper(self.name)\n\n\nprint(Greeter(\"world\").greet())\n",
	"helper.py": "def helper(name: str) -> str:\n    return \"hello \" + name\n",
}

// servers are the servers that docs/language-servers.md lists.
var servers = map[string]server{
	"gopls": {
		language: "go", command: []string{"gopls"}, files: goFiles, main: "main.go",
		symbol: "helper", complete: "fmt.", from: "helper(g.name)", mistake: "helped(g.name)", complaint: "undefined: helped", ready: hover, understands: "func helper",
	},
	"clangd": {
		language: "cpp", command: []string{"clangd", "--background-index"}, main: "main.cpp",
		files: map[string]string{
			"compile_flags.txt": "-std=c++17\n",
			"helper.h":          "#pragma once\n\n/// Returns twice the count.\ninline int helper(int count) { return 2 * count; }\n",
			"main.cpp":          "#include \"helper.h\"\n\nstruct Greeter {\n  int count;\n  int greet() const { return helper(count); }\n};\n\nint main() {\n  Greeter  g{1};\n  return g.greet();\n}\n",
		},
		symbol: "helper(", complete: "return g.", from: "helper(count)", mistake: "helped(count)", complaint: "undeclared identifier 'helped'", ready: hover, understands: "helper",
	},
	"typescript-language-server": {
		language: "typescript", command: []string{"typescript-language-server", "--stdio"}, options: map[string]any{"disableAutomaticTypingAcquisition": true},
		files: typescriptFiles, main: "main.ts", symbol: "helper(", complete: "(this.", from: "helper(this", mistake: "helped(this", complaint: "Cannot find name 'helped'",
		ready: hover, understands: "helper(name",
	},
	"tsgo": {
		language: "typescript", command: []string{"tsgo", "--lsp", "--stdio"}, files: typescriptFiles, main: "main.ts", pulls: true,
		symbol: "helper(", complete: "(this.", from: "helper(this", mistake: "helped(this", complaint: "Cannot find name 'helped'", ready: hover, understands: "helper(name",
	},
	"pyright": {
		language: "python", command: []string{"pyright-langserver", "--stdio"}, files: pythonFiles, main: "main.py",
		symbol: "helper(", complete: "helper(self.", from: "helper(self", mistake: "helped(self", complaint: "\"helped\" is not defined", ready: hover, understands: "helper",
	},
	"basedpyright": {
		language: "python", command: []string{"basedpyright-langserver", "--stdio"}, files: pythonFiles, main: "main.py",
		symbol: "helper(", complete: "helper(self.", from: "helper(self", mistake: "helped(self", complaint: "\"helped\" is not defined", ready: hover, understands: "helper",
	},
	"bash-language-server": {
		language: "shellscript", command: []string{"bash-language-server", "start"}, main: "main.sh",
		files: map[string]string{
			"main.sh": "#!/usr/bin/env bash\n# Greets.\ngreet() {\n  echo \"hello $1\"\n}\ngreet world\n",
		},
		symbol: "greet world", complete: "gre", ready: hover, understands: "greet",
	},
	"vscode-css-language-server": {
		language: "css", command: []string{"vscode-css-language-server", "--stdio"}, main: "main.css",
		files:  map[string]string{"main.css": ":root {\n  --accent: #ff0000;\n}\n\n.button {\n  color: var(--accent);\n}\n"},
		symbol: "color: var", complete: "  co", from: "color: var(--accent);", mistake: "color: ;", complaint: "expected", settings: map[string]any{"css": map[string]any{"validate": true}}, ready: hover, understands: "color",
	},
	"vscode-html-language-server": {
		language: "html", command: []string{"vscode-html-language-server", "--stdio"}, main: "main.html",
		files:  map[string]string{"main.html": "<!DOCTYPE html>\n<html>\n  <head><title>hello</title></head>\n  <body>\n    <button type=\"button\">press</button>\n  </body>\n</html>\n"},
		symbol: "button type", complete: "<bu", ready: hover, understands: "button",
	},
	"vscode-json-language-server": {
		language: "json", command: []string{"vscode-json-language-server", "--stdio"}, main: "main.json",
		files:  map[string]string{"main.json": "{\n  \"name\": \"hello\",\n  \"parts\": [1, 2, 3]\n}\n"},
		symbol: "name", from: "[1, 2, 3]", mistake: "[1, 2, }", complaint: "expected", ready: documentSymbols, understands: "parts",
	},
	"yaml-language-server": {
		language: "yaml", command: []string{"yaml-language-server", "--stdio"}, main: "main.yaml",
		files:  map[string]string{"main.yaml": "name: hello\nparts:\n  - one\n  - two\n"},
		symbol: "parts", from: "name: hello\n", mistake: "name: [hello\n", complaint: "Flow sequence", ready: documentSymbols, understands: "parts",
	},
	"dockerfile-language-server": {
		language: "dockerfile", command: []string{"docker-langserver", "--stdio"}, main: "Dockerfile",
		files:  map[string]string{"Dockerfile": "FROM debian AS base\nRUN echo hello\nFROM base\nCOPY . /src\n"},
		symbol: "COPY", complete: "CO", from: "COPY . /src", mistake: "COPIED . /src", complaint: "COPIED", ready: hover, understands: "COPY",
	},
	"vim-language-server": {
		language: "vim", command: []string{"vim-language-server", "--stdio"}, main: "main.vim",
		options: map[string]any{"isNeovim": true, "diagnostic": map[string]any{"enable": true}, "indexes": map[string]any{"runtimepath": false}, "suggest": map[string]any{"fromRuntimepath": false, "fromVimruntime": false}},
		files:   map[string]string{"main.vim": "function! Greet(name) abort\n  echo 'hello ' . a:name\nendfunction\n\ncall Greet('world')\n"},
		symbol:  "Greet('world')", ready: documentSymbols, understands: "Greet",
	},
	"svelte-language-server": {
		language: "svelte", command: []string{"svelteserver", "--stdio"}, main: "main.svelte",
		files: map[string]string{
			"package.json": "{\"name\": \"hello\"}\n",
			"main.svelte":  "<script lang=\"ts\">\n  let name: string = \"world\";\n  function greet(): string {\n    return \"hello \" + name;\n  }\n</script>\n\n<p>{greet()}</p>\n",
		},
		symbol: "greet()}", from: "\"hello \" + name", mistake: "\"hello \" + nam", complaint: "Cannot find name 'nam'", ready: hover, understands: "greet",
	},
	"biome": {
		language: "javascript", command: []string{"biome", "lsp-proxy"}, main: "main.js",
		files: map[string]string{"biome.json": "{}\n", "main.js": "export function greet(name) {\n  return 'hello ' + name;\n}\n"},
		from:  "'hello ' + name", mistake: "'hello ' + ", complaint: "xpected", ready: "textDocument/formatting", understands: "newText",
	},
	"graphql-language-service": {
		language: "graphql", command: []string{"graphql-lsp", "server", "-m", "stream"}, main: "main.graphql",
		files: map[string]string{
			"graphql.config.json": "{\"schema\": \"schema.graphql\", \"documents\": \"*.graphql\"}\n",
			"schema.graphql":      "type Query {\n  greeting: String\n}\n",
			"main.graphql":        "query Greet {\n  greeting\n}\n",
		},
		symbol: "greeting", ready: hover, understands: "greeting",
	},
	"intelephense": {
		language: "php", command: []string{"intelephense", "--stdio"}, main: "main.php",
		files:  map[string]string{"main.php": "<?php\n\n/** Greets. */\nfunction greet(string $name): string\n{\n    return 'hello ' . $name;\n}\n\necho greet('world');\n"},
		symbol: "greet('world')", from: "echo greet", mistake: "echo greeted", complaint: "Undefined function 'greeted'", ready: hover, understands: "greet",
	},
}
