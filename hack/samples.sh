#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prepares the samples of `make run` in a separate folder and prints the folder of the manifests. The Vite project is included if npm is installed, a tmux session
# if tmux is installed, and a language server if gopls was built. With the argument gopls, the script only adds the language server and prints its manifest.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${XDG_STATE_HOME:-$HOME/.local/state}/berth-samples
say() { echo "samples: $*" >&2; }

# The Go module is also copied, so that you can change it when you try the language server.
gopls() {
  mkdir -p "$state/greeter"
  cp -R "$root"/samples/greeter/. "$state/greeter/"
  sed "s|folders: .*|folders: [\"$state/greeter\"]|" "$root/config/samples/gopls/languageserver.yaml" > "$state/manifests/gopls.yaml"
}
if [ "${1:-}" = gopls ]; then
  gopls
  echo "$state/manifests/gopls.yaml"
  exit
fi

rm -rf "$state/manifests"
mkdir -p "$state/manifests"
cp "$root"/config/samples/local/*.yaml "$root"/config/samples/plan/check-module.yaml "$state/manifests/"

# The plan checks a copy of a module and writes its reports next to it.
mkdir -p "$state/greeting" "$state/reports"
cp -R "$root"/samples/greeting/. "$state/greeting/"
sed "s|/srv/|$state/|" "$root/config/samples/plan/plan.yaml" > "$state/manifests/plan.yaml"
sed "s|/srv/|$state/|" "$root/config/samples/strategy/strategy.yaml" > "$state/manifests/strategy.yaml"

# The project is copied, so that node_modules is not created in the checkout.
vite() {
  mkdir -p "$state/vite"
  cp -R "$root"/samples/vite/. "$state/vite/"
  install_vite || return 1
  sed "s|workingDir: .*|workingDir: $state/vite|" "$root/config/samples/vite/devserver.yaml" > "$state/manifests/vite.yaml"
}

install_vite() {
  local installed=node_modules/.berth-installed
  cd "$state/vite"
  if cmp -s package-lock.json "$installed"; then return; fi
  say "installing Vite with npm into $state/vite (once)"
  npm ci --no-audit --no-fund --loglevel=error >&2 && cp package-lock.json "$installed"
}

if ! command -v npm >/dev/null; then
  say "npm is not installed; skipping the Vite project"
elif ! (vite); then
  say "npm cannot install Vite (see above); skipping the Vite project"
fi

if command -v tmux >/dev/null; then
  cp "$root/config/samples/tmux/instance.yaml" "$state/manifests/tmux.yaml"
else
  say "tmux is not installed; skipping the tmux session"
fi

if [ -x "$root/bin/gopls" ]; then
  gopls
else
  say "bin/gopls does not exist; the language server is added once gopls is built"
fi
echo "$state/manifests"
