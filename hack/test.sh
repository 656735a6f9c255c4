#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs go test with the given arguments. Then it prints which tests were skipped because of this machine, and how to install what they need. If BERTH_SKIPPED_TESTS
# names a file, the list of these tests remains there: what is lacking (program or machine), package, test and reason, separated by tabs.
set -euo pipefail
if [ -z "${BERTH_SKIPPED_TESTS:-}" ]; then
  BERTH_SKIPPED_TESTS=$(mktemp)
  trap 'rm -f "$BERTH_SKIPPED_TESTS"' EXIT
fi
export BERTH_SKIPPED_TESTS
: >"$BERTH_SKIPPED_TESTS"
status=0
go test "$@" || status=$?
if [ -s "$BERTH_SKIPPED_TESTS" ]; then
  echo "Not all tests ran on this machine:"
  awk -F '\t' '{
    sub("^github.com/berth-dev/berth/", "", $2)
    tests[$4]++
    if (!(($4, $2) in seen)) packages[$4] = packages[$4] " " $2
    seen[$4, $2]
  } END { for (reason in tests) printf "  %s: %d test%s in%s\n", reason, tests[reason], tests[reason] == 1 ? "" : "s", packages[reason] }' "$BERTH_SKIPPED_TESTS" | sort
  missing=$(grep -o 'apt-get install [^)]*' "$BERTH_SKIPPED_TESTS" | cut -d ' ' -f 3- | tr ' ' '\n' | sort -u | xargs || true)
  if [ -n "$missing" ]; then echo "To run all of them, install on Debian: apt-get install $missing"; fi
fi
exit "$status"
