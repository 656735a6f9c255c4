#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes the references of the API and of the commands to a folder: hack/reference/generate.sh docs/reference
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go tool -modfile=hack/tools/go.mod crd-ref-docs --config hack/reference/config.yaml --log-level ERROR \
  --source-path api/v1alpha1 --renderer markdown --output-path "$1/api.md"
CGO_ENABLED=0 go run -trimpath ./hack/reference/cli > "$1/cli.md"
