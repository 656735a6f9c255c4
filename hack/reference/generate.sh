#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes the API reference to a file: hack/reference/generate.sh docs/reference/api.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go tool -modfile=hack/tools/go.mod crd-ref-docs --config hack/reference/config.yaml --log-level ERROR \
  --source-path api/v1alpha1 --renderer markdown --output-path "$1"
