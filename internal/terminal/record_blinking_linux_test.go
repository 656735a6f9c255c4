// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

const (
	// clock is a shell function that draws the time at a line, once in 0.3 s, and leaves the cursor where it was.
	clock = `printf '%s\n' 'clock() { while :; do printf "\0337\033[%s;1H%s\033[K\0338" "$1" "$(date +%T.%N)"; sleep 0.3; done; }' > clock.sh; `
	// spinner is a shell function that draws a spinner and a word that blinks at a line.
	spinner = `printf '%s\n' 'spinner() { while :; do for c in "● Waiting" "○" "◐ Waiting"; do printf "\0337\033[%s;1H%s\033[K\0338" "$1" "$c"; sleep 0.2; done; done; }' > spinner.sh; `
	// menu is a program with a menu beside a spinner. It reads single keys.
	animated = `cat > menu.py <<'END'
import sys, time, tty, select
tty.setcbreak(0)
sys.stdout.write('\x1b[2J\x1b[5;1HDo you want to proceed?\r\n ❯ 1. Yes\r\n   2. No\r\n')
for i in range(10**6):
    sys.stdout.write('\x1b[1;1H%s Waiting\x1b[9;1H' % '●○'[i % 2])
    sys.stdout.flush()
    if select.select([0], [], [], 0.3)[0]: break
END
`
	// progress is a program that asks, and then shows what it does below the question. The kind is how.
	progress = `cat > progress.py <<'END'
import sys, time
kind = sys.argv[1]
if kind == 'answered':
    input('Press Enter to continue')
elif kind == 'asked':
    print('Remove 12 files? [y/N]')
print()
for i in range(10**6):
    if kind == 'bar':
        sys.stdout.write('\r%3d%%|%-10s| %d/1000 [00:%02d<00:10]: ' % (i % 100, '#' * (i // 10 % 10), i, i // 5 % 60))
    elif kind == 'countdown':
        sys.stdout.write('\rTry again? In %d s: ' % (1000 - i))
    else:
        sys.stdout.write('\r%s Removing\n%3d%%\n\x1b[2A' % ('|/-\\'[i % 4], i % 100))
    sys.stdout.flush()
    time.sleep(0.2)
END
`
)

// blinking are screens of which a part is never still.
var blinking = []scene{
	{name: "blink-menu", asks: true, moving: true, prepare: animated, run: `python3 menu.py`, shows: `No`},
	{name: "blink-read", asks: true, moving: true, prepare: clock, run: `bash -c '. ./clock.sh; printf "\n\n\n"; clock 1 & read -p "Deploy where " x'`, shows: `where`},
	{name: "blink-below", asks: true, moving: true, prepare: clock, run: `bash -c '. ./clock.sh; clock 40 & read -p "Deploy where " x'`, shows: `where`},
	{name: "blink-word", asks: true, moving: true, prepare: spinner, run: `bash -c '. ./spinner.sh; printf "\n\n\n"; spinner 2 & read -p "Which file? " x'`, shows: `Which`},
	{name: "blink-rm", asks: true, moving: true, prepare: spinner + `touch a; `, run: `bash -c '. ./spinner.sh; printf "\n\n\n"; spinner 1 & rm -i a'`, shows: `remove`},
	{name: "blink-password", asks: true, moving: true, prepare: clock, run: `bash -c '. ./clock.sh; clock 20 & read -s -p "Token: " x'`, shows: `Token`},
	{name: "blink-title", asks: true, moving: true, run: `bash -c '(while :; do for c in "*" "+"; do printf "\033]0;%s Waiting\a" "$c"; sleep 0.3; done; done) & read -p "Overwrite everything? " x'`, shows: `Overwrite`},
	{name: "blink-cursor", asks: true, moving: true, run: `bash -c '(while :; do printf "\033[?25l"; sleep 0.5; printf "\033[?25h"; sleep 0.5; done) & read -p "Overwrite everything? " x'`, shows: `Overwrite`},
	{name: "blink-getpass", asks: true, moving: true, prepare: spinner, run: `bash -c '. ./spinner.sh; printf "\n\n"; spinner 1 & python3 -c "import getpass; getpass.getpass(\"API token: \")"'`, shows: `token`},
	{name: "blink-scroll", asks: true, moving: true, run: `bash -c 'printf "\033[1;10r\033[12;1H"; (i=0; while :; do i=$((i+1)); printf "\0337\033[10;1H\nline %s\0338" $i; sleep 0.2; done) & read -p "Stop the log? " x'`, shows: `Stop`},

	{name: "work-clock", moving: true, prepare: clock, run: `bash -c '. ./clock.sh; clock 1'`, shows: `:`},
	{name: "work-clock-shell", moving: true, prepare: clock, run: `bash --norc -i`, steps: []step{{`# `, "clear; . ./clock.sh; clock 20 &\r"}}, shows: `:\d\d:`},
	{name: "work-watch", moving: true, run: `watch -n 1 'date; echo "Restart now? [y/N]"'`, shows: `Restart`},
	{name: "work-top", moving: true, run: `sh -c 'exec top -d 1 -p $$'`, shows: `COMMAND`},
	{name: "work-top-batch", moving: true, run: `sh -c 'exec top -b -d 1 -p $$'`, shows: `COMMAND`},
	{name: "work-htop", moving: true, run: `sh -c 'exec htop -d 10 -p $$'`, shows: `Quit`},
	{name: "work-answered", moving: true, prepare: progress, run: `python3 progress.py answered`, steps: []step{{`continue`, "\r"}}, shows: `Removing`},
	{name: "work-asked", moving: true, prepare: progress, run: `python3 progress.py asked`, shows: `Removing`},
	{name: "work-bar", moving: true, prepare: progress, run: `python3 progress.py bar`, shows: `%`},
	{name: "work-countdown", moving: true, prepare: progress, run: `python3 progress.py countdown`, shows: `again`},
	{name: "work-menu-answered", moving: true, prepare: animated + `printf 'import time\nfor i in range(10**6): print("\\r%%s Working" %% "●○"[i %% 2], end="", flush=True); time.sleep(0.3)\n' >> menu.py; `, run: `python3 menu.py`, steps: []step{{`No`, "1"}}, shows: `Working`},
	{name: "work-log", moving: true, run: `bash -c 'while :; do echo "$(date +%N) Continue? [y/N]"; sleep 0.2; done'`, shows: `Continue`},
	{name: "work-log-repeats", moving: true, run: `bash -c 'while :; do echo "Enter passphrase for the key:"; sleep 0.2; done'`, shows: `Enter`},
	{name: "work-tail", moving: true, prepare: `(for i in $(seq 600); do printf 'line %s\nDo you want to continue? [Y/n] ' $i; sleep 0.2; done) > a.txt & `, run: `tail -f a.txt`, shows: `continue`},
	{name: "work-less", moving: true, prepare: `(for i in $(seq 600); do echo "line $i: proceed?"; sleep 0.2; done) > a.txt & `, run: `less +F a.txt`, shows: `proceed`},
	{name: "work-spinner-asks", moving: true, prepare: spinner, run: `bash -c '. ./spinner.sh; printf "\nIs the server up? "; spinner 5'`, shows: `server`},
	{name: "work-keys", moving: true, run: `node -e 'process.stdin.setRawMode(true); process.stdin.on("data", () => 0); let i = 0; setInterval(() => process.stdout.write("\rEncoding frame " + i++ + " of 4000"), 100)'`, shows: `Encoding`},
	{name: "work-keys-spinner", moving: true, run: `node -e 'process.stdin.setRawMode(true); process.stdin.on("data", () => 0); process.stdout.write("Server runs. Press q to stop it.\r\n"); let i = 0; setInterval(() => process.stdout.write("\r" + "|/-"[i++ % 3] + " watching for changes"), 100)'`, shows: `watching`},
	{name: "work-tmux", moving: true, run: `tmux -L blinks -f /dev/null new-session "timeout 60 watch -n 1 date"`, shows: `Every`},
	{name: "work-make", moving: true, prepare: `printf 'all: $(shell seq 200)\n%%:\n\t@echo "Compile $@?"; sleep 0.3\n' > Makefile; `, run: `make`, shows: `Compile 3`},
	{name: "work-git", moving: true, run: `bash -c 'for i in $(seq 1000); do printf "\rReceiving objects: %3d%% (%d/1000)" $((i / 10)) $i; sleep 0.1; done'`, shows: `Receiving`},
	{name: "work-pager-clock", moving: true, prepare: clock + text, run: `bash -c '. ./clock.sh; clock 40 & less a.txt'`, shows: `Line 1`},
	{name: "work-vim-clock", moving: true, prepare: clock + text, run: `bash -c '. ./clock.sh; clock 1 & vim -u NONE a.txt'`, shows: `Line 1`},
	{name: "work-curses", moving: true, run: `python3 -c 'import curses, time; curses.wrapper(lambda w: [(w.addstr(2, 2, "Copy all files?  %d %%" % (i % 100)), w.addstr(4, 2, "> Yes"), w.addstr(5, 2, "  No"), w.refresh(), time.sleep(0.2)) for i in range(10**6)])'`, shows: `Copy`},
}
