#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for some time: hack/fuzz.sh 10s. An input that fails is kept in testdata/fuzz of its package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
each=${1:-10s}
failed=0
while IFS=: read -r file target; do
  package=./$(dirname "$file")
  echo "fuzzing $target in $package for $each" >&2
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" || failed=1
done < <(grep -rho --include='*_test.go' --with-filename '^func Fuzz[A-Za-z0-9_]*' api controllers internal test | sed 's/:func /:/' | sort)
exit "$failed"
