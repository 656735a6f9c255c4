#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Compiles one program of the module in FOLDER into the file OUTPUT, and shows how many packages are compiled: hack/compile.sh FOLDER OUTPUT PACKAGE [LDFLAGS].
# It prints only errors if it takes less than ten seconds.
set -euo pipefail
[[ $2 = /* ]] || { echo "compile.sh: OUTPUT must be an absolute path, not $2" >&2; exit 2; }
cd "$1"
output=$2 package=$3 ldflags="-s -w ${4:-}" last=$SECONDS

# show reads the output of go, which prints a line for each module that it downloads and for each package that it compiles.
show() { # show TOTAL
  local line modules=0 packages=0
  while IFS= read -r line; do
    case $line in
      "go: downloading "*) modules=$((modules + 1)) ;;
      *[[:space:]]*) echo "$line" >&2 ;; # an error
      *) packages=$((packages + 1)) ;;
    esac
    if [ $((SECONDS - last)) -ge 10 ]; then
      if [ "$1" -eq 0 ]; then echo "  ${output##*/}: downloaded $modules modules, $SECONDS s" >&2
      else echo "  ${output##*/}: compiled $packages of at most $1 packages, $SECONDS s" >&2; fi
      last=$SECONDS
    fi
  done
}

total=$({ CGO_ENABLED=0 go list -deps "$package" | wc -l; } 2> >(show 0))
status=0
# go build sets the time of a file that is up to date. berth up identifies a control plane of an earlier run by the time of its program, so keep it.
before=$(sha256sum "$output" 2>/dev/null || true)
time=$(mktemp) # two calls may build the same program at the same time
trap 'rm -f "$time"' EXIT
touch -r "$output" "$time" 2>/dev/null || true
CGO_ENABLED=0 go build -v -trimpath -ldflags "$ldflags" -o "$output" "$package" 2>&1 | show "$total" || status=$?
if [ -n "$before" ] && [ "$before" = "$(sha256sum "$output" 2>/dev/null)" ]; then touch -r "$time" "$output"; fi
if [ $((SECONDS)) -ge 10 ]; then echo "  ${output##*/}: built in $SECONDS s" >&2; fi
exit "$status"
