#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for some time: hack/fuzz.sh 10s. An input that fails is kept in testdata/fuzz of its package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
each=${1:-10s}
failed=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT
while IFS=: read -r file target; do
  package=./$(dirname "$file")
  echo "fuzzing $target in $package for $each" >&2
  if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" 2>&1 | tee "$said"; then
    # Go reports a worker that is busy when the time is over as "context deadline exceeded". Only that is no failure: a failing input is always written.
    if grep -q 'Failing input written' "$said" || ! grep -q 'context deadline exceeded' "$said"; then failed=1; fi
  fi
done < <(grep -rho --include='*_test.go' --with-filename '^func Fuzz[A-Za-z0-9_]*' api controllers internal test | sed 's/:func /:/' | sort)
exit "$failed"
