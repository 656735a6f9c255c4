#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Reads the output of go build -v or go list, which print a line for each compiled package and for each downloaded module, and shows every ten seconds how many there
# were: go build -v PACKAGE 2>&1 | hack/progress.sh NAME PACKAGES. It prints other lines, such as errors, as they are. PACKAGES is the number of packages, or 0 for go list.
set -euo pipefail
name=$1 total=$2 last=$SECONDS modules=0 packages=0
while IFS= read -r line; do
  case $line in
    "go: downloading "*) modules=$((modules + 1)) ;;
    *[[:space:]]*) echo "$line" >&2 ;; # an error
    *) packages=$((packages + 1)) ;;
  esac
  if [ $((SECONDS - last)) -ge 10 ]; then
    if [ "$packages" -eq 0 ]; then echo "  $name: downloaded $modules modules, $SECONDS s" >&2
    else echo "  $name: compiled $packages of at most $total packages, $SECONDS s" >&2; fi
    last=$SECONDS
  fi
done
