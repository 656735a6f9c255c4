#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lists lines that use words of hack/vocabulary.txt, and fails if there are any. Generated files and dependency lists are not checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
words=$(mktemp)
trap 'rm -f "$words"' EXIT
grep -v '^#' hack/vocabulary.txt >"$words"
files=('*.go' '*.md' '*.yaml' '*.yml' '*.sh' '*.tpl' '*.txt' Makefile .ci/run
  ':!hack/vocabulary.txt' ':!*zz_generated*' ':!*go.sum' ':!config/crd/bases' ':!charts/*/files/crds' ':!**/testdata/**')
if git grep -nIiE -f "$words" -- "${files[@]}"; then
  exit 1
fi
