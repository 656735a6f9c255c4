#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Compiles what the tests of the given packages import from other modules, and shows how far it is: hack/precompile.sh FLAG PACKAGE... . FLAG is -race or -trimpath.
# go test itself would print nothing for minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flag=$1
shift
imports=$(go list "$flag" -deps -test -f '{{if and .Module (not .Module.Main)}}{{.ImportPath}}{{end}}' "$@" 2> >(hack/progress.sh tests 0))
if [ -z "$imports" ]; then exit; fi # only packages of the standard library
mapfile -t imports < <(sort -u <<<"$imports")
go build "$flag" -v "${imports[@]}" 2>&1 | hack/progress.sh tests "${#imports[@]}"
