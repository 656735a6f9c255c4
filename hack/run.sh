#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs `berth up` with the samples: hack/run.sh BIN [ARGUMENT OF BERTH UP...]. It does not wait for gopls and kubectl. If one of them is missing, make builds it
# while berth up runs, and the sample of a language server is applied as soon as gopls exists.
set -euo pipefail
bin=$1
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=${XDG_STATE_HOME:-$HOME/.local/state}/berth-samples
log=$state/build.log
export PATH="$bin:$PATH"

targets=(gopls) # make compares its version
command -v kubectl >/dev/null || targets+=(kubectl)

# kubeconfig prints the kubeconfig of the control plane whose state directory the arguments of berth up name.
kubeconfig() {
  local dir=${XDG_STATE_HOME:-$HOME/.local/state}/berth previous='' argument
  for argument in "$@"; do
    case $previous:$argument in
      --state-dir:*) dir=$argument ;;
      *:--state-dir=*) dir=${argument#*=} ;;
    esac
    previous=$argument
  done
  echo "$dir/kubeconfig"
}

# build writes to a log, because berth up shows a table on the terminal.
build() { # build KUBECONFIG
  local target manifest
  for target in "${targets[@]}"; do
    nice env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory -C "$root" "$target" || continue
    if [ "$target" = gopls ] && [ ! -e "$samples/gopls.yaml" ] && [ -x "$bin/gopls" ]; then
      manifest=$("$root/hack/samples.sh" gopls)
      until "$bin/berth" apply --kubeconfig "$1" -f "$manifest"; do sleep 1; done # berth up may not be ready yet
    fi
  done
}

samples=$("$root/hack/samples.sh")
if [ ! -x "$bin/gopls" ] || [ "${#targets[@]}" -gt 1 ]; then
  echo "building ${targets[*]} while berth up runs (output: $log)" >&2
fi
set -m # a process group of its own, which Ctrl-C in the terminal does not reach
build "$(kubeconfig "$@")" </dev/null >"$log" 2>&1 &
builder=$!
set +m
trap 'kill -- -"$builder" 2>/dev/null || true' EXIT
"$bin/berth" up -f "$samples" "$@"
case " $* " in
  *" -d "* | *" --detach "*) wait "$builder" ;; # berth up runs in the background
esac
