#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Compiles one program of the module in FOLDER into the file OUTPUT, and shows how many packages are compiled: hack/compile.sh FOLDER OUTPUT PACKAGE [LDFLAGS].
# It prints only errors if it takes less than ten seconds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $2 = /* ]] || { echo "compile.sh: OUTPUT must be an absolute path, not $2" >&2; exit 2; }
cd "$1"
output=$2 package=$3 ldflags="-s -w ${4:-}"

total=$({ CGO_ENABLED=0 go list -deps "$package" | wc -l; } 2> >("$here/progress.sh" "${output##*/}" 0))
status=0
# go build sets the time of a file that is up to date. berth up identifies a control plane of an earlier run by the time of its program, so keep it.
before=$(sha256sum "$output" 2>/dev/null || true)
time=$(mktemp) # two calls may build the same program at the same time
trap 'rm -f "$time"' EXIT
touch -r "$output" "$time" 2>/dev/null || true
CGO_ENABLED=0 go build -v -trimpath -ldflags "$ldflags" -o "$output" "$package" 2>&1 | "$here/progress.sh" "${output##*/}" "$total" || status=$?
if [ -n "$before" ] && [ "$before" = "$(sha256sum "$output" 2>/dev/null)" ]; then touch -r "$time" "$output"; fi
if [ $((SECONDS)) -ge 10 ]; then echo "  ${output##*/}: built in $SECONDS s" >&2; fi
exit "$status"
