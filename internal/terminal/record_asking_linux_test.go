// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import "slices"

const (
	repository = `git init -q -b main . && printf 'one\ntwo\n' > a.txt && git add . && git commit -qm first && printf 'one\nthree\n' > a.txt && touch junk`
	program    = `printf 'def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n' > main.py`
	// refuses starts an HTTP server that requires a password for every request; it writes its port to the file named port.
	refuses = `cat > refuse.py <<'END'
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.send_header('WWW-Authenticate', 'Basic realm="x"'); self.send_header('Content-Length', '0'); self.end_headers()
    def log_message(self, *a): pass
s = http.server.HTTPServer(('127.0.0.1', 0), H)
open('port', 'w').write(str(s.server_port))
s.serve_forever()
END
setsid timeout 60 python3 refuse.py >/dev/null 2>&1 & until [ -s port ]; do :; done`
	nobody = `setpriv --reuid=nobody --regid=nogroup --clear-groups `
)

var asking = []scene{
	{name: "python-input", run: `python3 -c 'input("What is your name? ")'`, shows: `name\?`},
	{name: "python-input-plain", run: `python3 -c 'print("Settings"); input("Project directory ")'`, shows: `directory `},
	{name: "python-input-newline", run: `python3 -c 'input("Where should the report go?\n")'`, shows: `go\?`},
	{name: "python-getpass", run: `python3 -c 'import getpass; getpass.getpass("API token: ")'`, shows: `token:`},
	{name: "python-readline", run: `python3 -c 'import readline; input("Branch name: ")'`, shows: `name:`},
	{name: "python-repl", run: `python3 -q`, shows: `>>> `},
	{name: "python-breakpoint", prepare: program, run: `python3 -c 'x = 1; breakpoint(); print(x)'`, shows: `\(Pdb\)`},
	{name: "pdb", prepare: program, run: `python3 -m pdb main.py`, shows: `\(Pdb\)`},
	{name: "pdb-stepped", prepare: program, run: `python3 -m pdb main.py`, steps: []step{{`\(Pdb\)`, "n\r"}}, shows: `\(Pdb\) `},
	{name: "gdb", run: `gdb -q`, shows: `\(gdb\)`},
	{name: "rm", prepare: `touch a`, run: `rm -i a`, shows: `\?`},
	{name: "rm-directory", prepare: `mkdir d && touch d/a`, run: `rm -ri d`, shows: `\?`},
	{name: "cp", prepare: `touch a b`, run: `cp -i a b`, shows: `\?`},
	{name: "mv", prepare: `touch a b`, run: `mv -i a b`, shows: `\?`},
	{name: "ln", prepare: `touch a b`, run: `ln -i a b`, shows: `\?`},
	{name: "find-ok", prepare: `touch a`, run: `find . -name a -ok rm {} \;`, shows: `\?`},
	{name: "xargs", run: `bash -c 'echo a | xargs -p echo'`, shows: `\?`},
	{name: "ssh-keygen-file", run: `ssh-keygen`, shows: `Enter file`},
	{name: "ssh-keygen-overwrite", prepare: `touch id`, run: `ssh-keygen -f id`, shows: `Overwrite`},
	{name: "ssh-keygen-passphrase", run: `ssh-keygen -f id`, shows: `passphrase`},
	{name: "ssh-keygen-again", run: `ssh-keygen -f id`, steps: []step{{`passphrase`, "\r"}}, shows: `again`},
	{name: "npm-init-name", run: `npm init`, shows: `package name:`},
	{name: "npm-init-version", run: `npm init`, steps: []step{{`package name:`, "\r"}}, shows: `version:`},
	{name: "npm-init-description", run: `npm init`, steps: []step{{`package name:`, "\r"}, {`version:`, "\r"}}, shows: `description:`},
	{name: "npm-init-ok", run: `npm init`, steps: []step{{`package name:`, "\r"}, {`version:`, "\r"}, {`description:`, "\r"}, {`entry point:`, "\r"}, {`test command:`, "\r"},
		{`git repository:`, "\r"}, {`keywords:`, "\r"}, {`author:`, "\r"}, {`license:`, "\r"}, {`type:`, "\r"}}, shows: `Is this OK`},
	{name: "npm-exec", run: `npm exec cowsay`, shows: `Ok to proceed`},
	{name: "yarn-init", run: `node $TOOLS/node_modules/yarn/bin/yarn.js init`, shows: `yarn-init\)`},
	{name: "git-add-p", prepare: repository, run: `git add -p`, shows: `Stage this hunk`},
	{name: "git-add-i", prepare: repository, run: `git add -i`, shows: `What now`},
	{name: "git-checkout-p", prepare: repository, run: `git checkout -p`, shows: `Discard this hunk`},
	{name: "git-stash-p", prepare: repository, run: `git stash -p`, shows: `Stash this hunk`},
	{name: "git-clean-i", prepare: repository, run: `git clean -i`, shows: `What now`},
	{name: "git-username", prepare: refuses, run: `git ls-remote http://127.0.0.1:$(cat port)/r`, shows: `Username`},
	{name: "git-password", prepare: refuses, run: `git ls-remote http://me@127.0.0.1:$(cat port)/r`, shows: `Password`},
	{name: "sudo", run: nobody + `sudo ls`, shows: `password`},
	{name: "sudo-blind", run: nobody + `sudo -p 'Kennwort: ' ls`, shows: `Kennwort`, blind: true},
	{name: "su", run: nobody + `su`, shows: `Password`},
	{name: "passwd", run: `passwd nobody`, shows: `password`},
	{name: "apt-install", run: `apt-get -o Debug::NoLocking=1 -o Dir::Etc::SourceParts=/dev/null remove htop`, shows: `continue`},
	{name: "apt", run: `apt -o Debug::NoLocking=1 -o Dir::Etc::SourceParts=/dev/null remove htop`, shows: `ontinue`},
	{name: "bash-read", run: `bash -c 'read -p "Deploy to production? " answer'`, shows: `production`},
	{name: "bash-read-script", prepare: `printf '#!/bin/bash\necho "Remove 12 files?"\nread answer\n' > clean.sh; chmod +x clean.sh`, run: `./clean.sh`, shows: `files`},
	{name: "bash-read-secret", run: `bash -c 'read -s -p "Token: " answer'`, shows: `Token`},
	{name: "bash-read-key", run: `bash -c 'read -n1 -p "Again, or quit (a/q): " answer'`, shows: `Again`},
	{name: "bash-select", run: `bash -c 'select v in dev prod; do break; done'`, shows: `#\?`},
	{name: "bash-runs-read", prepare: `printf 'printf "Version to release: "\nread v\n' > release.sh`, run: `bash --norc -i`, steps: []step{{`# `, "sh release.sh\r"}}, shows: `release: `},
	{name: "bash-runs-rm", prepare: `touch a`, run: `bash --norc -i`, steps: []step{{`# `, "rm -i a\r"}}, shows: `remove .*\?`},
	{name: "sh-read", run: `sh -c 'printf "Proceed with the migration? "; read answer'`, shows: `migration`},
	{name: "node-question", run: `node -e 'require("readline").createInterface({input: process.stdin, output: process.stdout}).question("Which port? ", () => 0)'`, shows: `port`},
	{name: "node-repl", run: `node`, shows: `> `},
	{name: "prompts-text", run: `node -e 'require("prompts")({type: "text", name: "n", message: "Project name"})'`, shows: `Project name`},
	{name: "prompts-select", run: `node -e 'require("prompts")({type: "select", name: "n", message: "Pick a colour", choices: ["red", "green"]})'`, shows: `Pick`},
	{name: "prompts-confirm", run: `node -e 'require("prompts")({type: "confirm", name: "n", message: "Use TypeScript?"})'`, shows: `TypeScript`},
	{name: "inquirer-select", run: `node -e '[require("@inquirer/prompts")].map(i => i.select({message: "Select a package manager", choices: [{value: "npm"}, {value: "yarn"}]}))'`, shows: `Select`},
	{name: "inquirer-confirm", run: `node -e '[require("@inquirer/prompts")].map(i => i.confirm({message: "Continue?"}))'`, shows: `Continue`},
	{name: "create-vite-name", run: `create-vite`, shows: `Project name`},
	{name: "create-vite-framework", run: `create-vite`, steps: []step{{`Project name`, "\r"}}, shows: `framework`},
	{name: "openssl-req", run: `openssl req -new -newkey rsa:2048 -nodes -keyout key.pem`, shows: `Country`},
	{name: "openssl-passphrase", run: `openssl genrsa -aes256 -out key.pem 2048`, shows: `pass phrase`},
	{name: "patch", run: `bash -c 'printf -- "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n" > p; patch -i p'`, shows: `File to patch`},
	{name: "whiptail", run: `whiptail --yesno "Restart services?" 10 40`, shows: `Restart`},
	{name: "debconf", run: `perl -e '$| = 1; print "Which services should be restarted: "; <STDIN>'`, shows: `restarted`},
	{name: "pip-uninstall", prepare: `python3 -m venv v`, run: `v/bin/pip uninstall pip`, shows: `Proceed`},
	{name: "perl-debugger", run: `perl -de 0`, shows: `DB<1>`},
	{name: "bash-read-e", run: `bash -c 'read -e -p "Name: " x'`, shows: `Name`},
	{name: "bash-key", run: `bash -c 'read -p "Overwrite everything? " -n 1'`, shows: `Overwrite`},
	{name: "chsh", run: `chsh nobody`, shows: `Login Shell`},
	{name: "chfn", run: `chfn nobody`, shows: `Full Name`},
	{name: "alternatives", run: `update-alternatives --config editor`, shows: `Press`},
	{name: "ssh-add", prepare: `ssh-keygen -q -N secret -f id`, run: `ssh-agent ssh-add id`, shows: `passphrase`},
	{name: "sqlite", run: `sqlite3`, shows: `sqlite>`},
	{name: "bc", run: `bash -c 'while read -p "calc: " l; do echo $l | bc; done'`, shows: `calc`},
	{name: "node-repl-more", run: `node`, steps: []step{{`> `, "function f() {\r"}}, shows: `\.\.\.|\| `},
	{name: "dpkg-reconfigure", run: `env DEBIAN_FRONTEND=readline dpkg-reconfigure tzdata`, shows: `Geographic area`},
	{name: "su-rm", prepare: `touch a`, run: `su nobody -s /bin/sh -c "rm -i a"`, shows: `\?`},
	{name: "codex-signin", run: `codex --no-daemon`, shows: `Sign in`},
	{name: "codex-trust", prepare: codexHome + "git init -q", run: `codex --no-daemon`, shows: `Trust and continue`},
	{name: "codex-key", run: `codex --no-daemon`, steps: []step{{`Sign in`, "3"}, {`Sign in`, "\r"}}, shows: `(?i)api key`},
	{name: "gemini-trust", prepare: geminiHome(true), run: `gemini`, shows: `(?i)trust`},
	{name: "gemini-signin", run: `gemini`, prepare: `mkdir -p $HOME/.gemini; echo '{"security": {"folderTrust": {"enabled": false}}}' > $HOME/.gemini/settings.json`, shows: `(?i)authenticate`},
	{name: "gemini-key", run: `gemini`, prepare: `mkdir -p $HOME/.gemini; echo '{"security": {"folderTrust": {"enabled": false}}}' > $HOME/.gemini/settings.json`,
		steps: []step{{`(?i)authenticate`, "2"}}, shows: `(?i)Enter.*API key`},
	{name: "gemini-first", run: `gemini`, shows: `(?i)trust|authenticate`},
}

// codexHome configures Codex for a model that needs no account, in a directory that Codex does not trust yet.
const codexHome = `mkdir -p $HOME/.codex; cat > $HOME/.codex/config.toml <<'END'
model = "test"
model_provider = "test"
check_for_update_on_startup = false
[model_providers.test]
name = "test"
base_url = "http://127.0.0.1:9/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
END
`

// geminiHome configures Gemini CLI to authenticate with an API key; the recordings use a placeholder.
func geminiHome(trust bool) string {
	enabled := "false"
	if trust {
		enabled = "true"
	}
	return `mkdir -p $HOME/.gemini; echo '{"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": ` + enabled + `}}, "general": {"disableAutoUpdate": true}}' > $HOME/.gemini/settings.json; `
}

// scenes are all screens.
func scenes() []scene {
	for i := range asking {
		asking[i].asks = true
	}
	return slices.Concat(asking, working, agents, blinking)
}
