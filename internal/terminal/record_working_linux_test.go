// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

const (
	module = `printf 'module example.com/x\n\ngo 1.22\n' > go.mod; printf 'package x\n\nimport (\n\t"testing"\n\t"time"\n)\n\nfunc TestFirst(t *testing.T) {}\n\nfunc TestSlow(t *testing.T) { t.Log("begun"); time.Sleep(time.Minute) }\n' > x_test.go; `
	text   = `for i in $(seq 200); do echo "Line $i. The script asks: Continue? [y/N]"; done > a.txt; `
	many   = `for i in $(seq 40); do printf '#include <stdio.h>\nint f%d(void){return %d;}\n' $i $i > f$i.c; done; printf 'all: slow $(patsubst %%.c,%%.o,$(wildcard f*.c))\nslow:\n\t@sleep 60\n' > Makefile; `
	// hangs starts an HTTP server that accepts requests and never answers; it writes its port to the file named port.
	hangs = `cat > hang.py <<'END'
import socket
s = socket.create_server(('127.0.0.1', 0))
open('port', 'w').write(str(s.getsockname()[1]))
c = []
while True: c.append(s.accept())
END
setsid timeout 90 python3 hang.py >/dev/null 2>&1 & until [ -s port ]; do :; done; `
	trustCodex = `printf '[projects."%s"]\ntrust_level = "trusted"\n' "$PWD" >> $HOME/.codex/config.toml; `
)

var working = []scene{
	{name: "bash-prompt", run: `bash --norc -i`, shows: `# `},
	{name: "bash-after-command", run: `bash --norc -i`, steps: []step{{`# `, "echo 'Continue? [y/N]'\r"}}, shows: `N\]\r\n`},
	{name: "bash-in-bash", run: `bash --norc -i`, steps: []step{{`# `, "bash --norc\r"}}, shows: `# `},
	{name: "bash-half-typed", run: `bash --norc -i`, steps: []step{{`# `, "git commit -m 'is it done?"}}, shows: `done`},
	{name: "bash-answered", prepare: `touch a`, run: `bash --norc -i`, steps: []step{{`# `, "rm -i a\r"}, {`\?`, "y\r"}}, shows: `# `},
	{name: "bash-sleeps", run: `bash --norc -i`, steps: []step{{`# `, "sleep 60\r"}}, shows: `sleep`},
	{name: "sh-prompt", run: `sh -i`, shows: `# `},
	{name: "zsh-prompt", run: `zsh -f -i`, shows: `# `},
	{name: "zsh-theme", run: `zsh -f -i`, steps: []step{{`# `, "PS1='%~ on main ❯ '\r"}}, shows: `zsh-theme on main`},
	{name: "sleep", run: `sleep 60`, shows: ``},
	{name: "sleep-announced", run: `sh -c 'printf "Compiling, please wait... "; sleep 60'`, shows: `wait`},
	{name: "sleep-colon", run: `sh -c 'printf "Resolving dependencies: "; sleep 60'`, shows: `:`},
	{name: "sleep-question", run: `sh -c 'printf "Is the server up? "; sleep 60'`, shows: `\?`},
	{name: "sleep-newline", run: `sh -c 'echo "Press Enter to continue"; sleep 60'`, shows: `continue`},
	{name: "tail-question", run: `tail -f a.txt`, prepare: text, shows: `Line 200`},
	{name: "tail-password", run: `tail -f a.txt`, prepare: `echo 'Password:' > a.txt`, shows: `Password`},
	{name: "tail-unfinished", run: `tail -f a.txt`, prepare: `printf 'Do you want to continue? [Y/n] ' > a.txt`, shows: `continue`},
	{name: "cat", run: `cat`, shows: ``},
	{name: "vim", run: `vim -u NONE a.txt`, prepare: text, shows: `Line 1`},
	{name: "vim-insert", run: `vim -u NONE a.txt`, prepare: text, steps: []step{{`Line 1`, "Goready? "}}, shows: `ready`},
	{name: "vim-command", run: `vim -u NONE a.txt`, prepare: text, steps: []step{{`Line 1`, ":%s/a/b/"}}, shows: `s/a/b`},
	{name: "nano", run: `nano a.txt`, prepare: text, shows: `Line 1`},
	{name: "git-commit-vim", run: `git commit -a`, prepare: repository + `; git config core.editor 'vim -u NONE'`, shows: `Please enter`},
	{name: "less", run: `less a.txt`, prepare: text, shows: `Line 1`},
	{name: "less-end", run: `less a.txt`, prepare: text, steps: []step{{`Line 1`, "G"}}, shows: `END`},
	{name: "git-log", run: `git log -p`, prepare: repository + `; for i in $(seq 60); do echo $i > a.txt; git commit -qam "Change $i?"; done`, shows: `Change`},
	{name: "more", run: `more a.txt`, prepare: text, shows: `More`},
	{name: "htop", run: `sh -c 'exec htop -p $$'`, shows: `Quit`},
	{name: "top", run: `sh -c 'exec top -p $$'`, shows: `COMMAND`},
	{name: "watch", run: `watch -n 10 -t 'echo "Restart now? [y/N]"'`, shows: `Restart`},
	{name: "go-test-v", run: `go test -v ./...`, prepare: module, shows: `begun`},
	{name: "go-test", run: `go test ./...`, prepare: module + `go test -c -o /dev/null .`, shows: ``},
	{name: "go-build", run: `go build -a -v ./...`, prepare: module + `printf 'package x\n\nimport _ "net/http"\n' > x.go`, shows: `\n`, moving: true},
	{name: "go-vet", run: `go vet -x ./...`, prepare: module + `printf 'package x\n\nimport _ "net/http"\n' > x.go`, shows: `WORK`, moving: true},
	{name: "make", run: `make -j2`, prepare: many, shows: `f9`},
	{name: "gcc", run: `gcc -O2 -c a.c`, prepare: `echo 'int main(){return 0;}' > b.c; mkfifo a.c`, shows: ``},
	{name: "pytest", run: `/usr/bin/python3 -m pytest -v -p no:cacheprovider`, prepare: `printf 'import time\ndef test_a(): pass\ndef test_slow(): time.sleep(60)\n' > test_a.py`, shows: `test_slow`},
	{name: "unittest", run: `python3 -m unittest -v`, prepare: `printf 'import time, unittest\nclass T(unittest.TestCase):\n    def test_is_it_ready(self):\n        "Is it ready?"\n        time.sleep(60)\n' > test_a.py`, shows: `ready\?`},
	{name: "mocha", run: `mocha a.js`, prepare: `printf 'it("asks?", function(done) { this.timeout(60000); setTimeout(done, 50000) }); it("b", () => {})' > a.js`, shows: ``},
	{name: "mocha-watch", run: `mocha --watch a.js`, prepare: `printf 'it("works", () => {})' > a.js`, shows: `waiting`},
	{name: "vitest", run: `vitest`, prepare: `printf 'import {test} from "vitest"\ntest("works", () => {})\n' > a.test.js; ln -s $TOOLS/node_modules node_modules`, shows: `Waiting`},
	{name: "tsc-watch", run: `tsc --watch --noEmit a.ts`, prepare: `echo 'const a: number = 1' > a.ts`, shows: `Watching`},
	{name: "esbuild-watch", run: `esbuild --watch a.js --outfile=b.js`, prepare: `echo 1 > a.js`, shows: `watching|finished`},
	{name: "nodemon", run: `nodemon a.js`, prepare: `echo 'setInterval(() => 0, 1000); console.log("Server listening. Stop it with Ctrl-C:")' > a.js`, shows: `listening`},
	{name: "vite", run: `vite --port 0`, prepare: `echo '<p>' > index.html`, shows: `Local`},
	{name: "node-server", run: `node -e 'require("http").createServer().listen(0, "127.0.0.1", () => process.stdout.write("Ready on:"))'`, shows: `Ready`},
	{name: "python-server", run: `python3 -u -m http.server 0 --bind 127.0.0.1`, shows: `Serving`},
	{name: "python-percent", run: `python3 -uc 'import time; print("Downloading (45%): ", end=""); time.sleep(60)'`, shows: `45`},
	{name: "python-thread", run: `python3 -uc 'import time, threading; threading.Thread(target=time.sleep, args=(60,)).start(); print("Which file? ", end="")'`, shows: `Which`},
	{name: "ora", run: `node -e '[require("ora")].map(o => { o.default("Which version is the newest?").start(); setTimeout(() => 0, 60000) })'`, shows: `newest`, moving: true},
	{name: "bash-spinner", run: `bash -c 'while :; do for c in / - \|; do printf "\rInstalling %s " "$c"; sleep 0.1; done; done'`, shows: `Installing`, moving: true},
	{name: "keys-poll", run: `node -e 'process.stdin.setRawMode(true); process.stdin.on("data", () => 0); process.stdout.write("Encoding frame 120 of 4000")'`, shows: `Encoding`},
	{name: "npm-install", run: `npm install --cache .cache typescript`, shows: ``, moving: true},
	{name: "npm-run", run: `npm run -s dev`, prepare: `echo '{"scripts": {"dev": "printf \"Starting server? \"; sleep 60"}}' > package.json`, shows: `Starting`},
	{name: "curl", run: `curl -o out http://127.0.0.1:$(cat port)/`, prepare: hangs, shows: `Total`},
	{name: "dd", run: `dd if=/dev/zero of=/dev/null status=progress`, shows: `copied`, moving: true},
	{name: "find", prepare: `touch $(seq -f '%g.gz' 300)`, run: `bash -c 'find . -name "*.gz"; sleep 60'`, shows: `gz`},
	{name: "apt-get-simulated", run: `bash -c 'apt-get -o Dir::Etc::SourceParts=/dev/null -s remove htop; sleep 60'`, shows: `Remv`},
	{name: "pdb-continues", run: `python3 -m pdb main.py`, prepare: `printf 'import time\ntime.sleep(60)\n' > main.py`, steps: []step{{`\(Pdb\)`, "c\r"}}, shows: `c`},
	{name: "bash-waits", run: `bash -c 'sleep 60 & echo "Waiting for job:"; wait'`, shows: `job`},
	{name: "script-sleeps", run: `script -qc 'printf "Building> "; sleep 60' /dev/null`, shows: `Building`},
	{name: "su-shell", run: `su nobody -s /bin/bash -c 'bash --norc'`, shows: `\$ `},
	{name: "sudo-shell", run: `sudo bash --norc`, shows: `# `},
	{name: "script-shell", run: `script -qc 'bash --norc' /dev/null`, shows: `# `},
	{name: "node-watch", prepare: `echo 'console.log("up")' > a.js`, run: `node --watch a.js`, shows: `Completed|up`},
	{name: "openssl", run: `openssl speed sha256`, shows: `Doing`, moving: true},
	{name: "sha256sum", run: `bash -c 'printf "Checksum of /dev/zero: "; sha256sum /dev/zero'`, shows: `:`},
	{name: "computes", run: `bash -c 'printf "Still there? "; exec python3 -c "while True: pass"'`, shows: `\?`},
	{name: "tmux", run: `tmux -L record -f /dev/null new-session "timeout 30 bash --norc"`, shows: `# `},
	{name: "less-prompt", run: `bash -c 'MANPAGER=less; seq 300 | less -P "Page? "'`, shows: `Page`},
	{name: "go-run", prepare: `printf 'package main\n\nimport ("fmt"; "time")\n\nfunc main() { fmt.Print("Listening on port: "); time.Sleep(time.Hour) }\n' > m.go`, run: `go run m.go`, shows: `port`},
	{name: "reads-elsewhere", run: `bash -c 'exec 3< <(sleep 100); printf "Waiting for lock (pid 7): "; read x <&3'`, shows: `lock`},
	{name: "python-asyncio", run: `python3 -c 'import asyncio; print("Connected. Send?", end="", flush=True); asyncio.run(asyncio.sleep(60))'`, shows: `Send`},
	{name: "vim-search", prepare: text, run: `vim -u NONE -R a.txt`, steps: []step{{`Line 1`, "/Continue?"}}, shows: `Continue`},
	{name: "codex-idle", prepare: codexHome + trustCodex, run: `codex --no-daemon`, shows: `Ask Codex|context`},
	{name: "codex-working", prepare: hangs + codexHome + trustCodex + `sed -i "s/:9/:$(cat port)/" $HOME/.codex/config.toml`, run: `codex --no-daemon`, steps: []step{{`Ask Codex|context`, "Which of these files asks a question?"}, {`Which`, "\r"}}, shows: `state=working`, moving: true},
	{name: "gemini-idle", prepare: geminiHome(false), run: `env GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9 gemini`, shows: `Type your message`},
	{name: "gemini-working", prepare: hangs + geminiHome(false), run: `env GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:$(cat port) gemini`, steps: []step{{`Type your message`, "Which of these files asks a question?"}, {`Which`, "\r"}}, shows: `esc to cancel`, moving: true},
}
