#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints -race where the race detector can be had, else says on stderr why not and prints nothing.
set -euo pipefail
compiler=$(go env CC)
if [ "$(go env CGO_ENABLED)" != 1 ]; then
  echo "testing without -race: cgo is off (CGO_ENABLED=0)" >&2
elif ! command -v "${compiler%% *}" >/dev/null; then
  echo "testing without -race: there is no C compiler; install gcc or clang" >&2
else
  echo -race
fi
