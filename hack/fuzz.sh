#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target of the module for the given time: hack/fuzz.sh 10s, or FUZZ_FOR=10s hack/fuzz.sh. A failing input is saved in testdata/fuzz of its
# package. The script fails immediately if a parser in the list below has no fuzz target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
each=${1:-${FUZZ_FOR:-10s}}
targets=$(grep -rho --include='*_test.go' --with-filename '^func Fuzz[A-Za-z0-9_]*' api controllers internal test | sed 's/:func /:/' | sort)
failed=0
while read -r package target what; do
  if ! grep -q "^$package/[^/]*:$target\$" <<<"$targets"; then
    echo "hack/fuzz.sh: $package has no fuzz target $target ($what)" >&2
    failed=1
  fi
done <<'END'
internal/runtime/tmux FuzzParseSessions output of tmux
internal/runtime/docker FuzzNextFrame frames of Docker
internal/runtime/host FuzzParseSockets /proc/net/tcp
internal/procstat FuzzParseStat /proc/PID/stat
internal/lsp/wire FuzzReader LSP frames
internal/lsp/wire FuzzScan LSP messages
internal/lsp/control FuzzReadLine control socket of a language server
internal/devproxy FuzzCheckHost head of a request to the proxy
internal/devproxy FuzzServerResponse answer of a server to the proxy
internal/endpoint FuzzReceive frames of berth attach
internal/cli FuzzKubeconfig kubeconfig
controllers/strategyrun FuzzSummary result of a run
END
if [[ $failed != 0 ]]; then exit 1; fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
while IFS=: read -r file target; do
  package=./$(dirname "$file")
  echo "fuzzing $target in $package for $each" >&2
  if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" 2>&1 | tee "$said"; then
    # If a worker is busy when the time is over, Go reports "context deadline exceeded". This alone is not a failure: a failing input is always written.
    if grep -q 'Failing input written' "$said" || ! grep -q 'context deadline exceeded' "$said"; then failed=1; fi
  fi
done <<<"$targets"
exit "$failed"
