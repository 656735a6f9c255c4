#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prepares the samples of `make run` in a folder of their own and prints the folder of the manifests. Where npm is there, the Vite project is one of them;
# where tmux is, a session in it; where gopls was built, a language server.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${XDG_STATE_HOME:-$HOME/.local/state}/berth-samples
say() { echo "samples: $*" >&2; }

rm -rf "$state/manifests"
mkdir -p "$state/manifests"
cp "$root"/config/samples/local/*.yaml "$root"/config/samples/plan/check-module.yaml "$state/manifests/"

# The plan checks a copy of a module, and leaves its reports beside it.
mkdir -p "$state/greeting" "$state/reports"
cp -R "$root"/samples/greeting/. "$state/greeting/"
sed "s|/srv/|$state/|" "$root/config/samples/plan/plan.yaml" > "$state/manifests/plan.yaml"
sed "s|/srv/|$state/|" "$root/config/samples/strategy/strategy.yaml" > "$state/manifests/strategy.yaml"

# The project is copied out of the checkout: node_modules would be in everybody's way there.
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
  say "no npm here, so the Vite project is left out"
elif ! (vite); then
  say "npm could not install Vite (see above), so the Vite project is left out"
fi

if command -v tmux >/dev/null; then
  cp "$root/config/samples/tmux/instance.yaml" "$state/manifests/tmux.yaml"
else
  say "no tmux here, so the session in tmux is left out"
fi

# The Go module is copied too, so that whoever tries the language server may change it.
if [ -x "$root/bin/gopls" ]; then
  mkdir -p "$state/greeter"
  cp -R "$root"/samples/greeter/. "$state/greeter/"
  sed "s|folders: .*|folders: [\"$state/greeter\"]|" "$root/config/samples/gopls/languageserver.yaml" > "$state/manifests/gopls.yaml"
else
  say "no bin/gopls here (make gopls builds it), so the language server is left out"
fi
echo "$state/manifests"
