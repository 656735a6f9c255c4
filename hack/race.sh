#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints -race if the race detector is available. Otherwise it prints -trimpath, with which the tests share compiled packages with make build, and the reason on
# stderr.
set -euo pipefail
compiler=$(go env CC)
if [ "$(go env CGO_ENABLED)" != 1 ]; then
  echo "testing without -race: cgo is off (CGO_ENABLED=0)" >&2
  echo -trimpath
elif ! command -v "${compiler%% *}" >/dev/null; then
  echo "testing without -race: no C compiler found; install gcc or clang" >&2
  echo -trimpath
else
  echo -race
fi
