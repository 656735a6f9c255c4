#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the suites that need a real node on a cluster made for them, and takes it down, whatever happens. A cluster that is up already is used, and left.
# Where a node cannot be made the suites are left out by name, with what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$KUBEBUILDER_ASSETS
suites=(./internal/runtime/pod ./test/cluster)

if [ -e "$BERTH_CLUSTER/kubeconfig" ]; then mine=no; else mine=yes; fi
before=$(hack/cluster/left.sh)
# Takes down what was made here, and fails when anything of it is left.
down() {
  [ "$mine" = yes ] || return 0
  "$bin/cluster" down || return 1
  local left
  left=$(comm -13 <(sort <<<"$before") <(hack/cluster/left.sh | sort))
  if [ -n "$left" ]; then
    printf 'the cluster has left:\n%s\n' "$left"
    return 1
  fi
}
status=0
"$bin/cluster" up || status=$?
if [ "$status" -eq 77 ]; then
  echo "left out, as there is no node (see above): TestConformance, TestOnANode, TestTerminalsOnANode and TestCluster of ${suites[*]}"
  exit 0
fi
if [ "$status" -ne 0 ]; then
  down || true
  exit "$status"
fi
trap 'status=$?; [ "$status" -eq 0 ] || "$bin/cluster" logs || true; down || status=1; exit "$status"' EXIT
"$bin/cluster" image localhost/berth/workload:test "$bin/workload"
"$bin/cluster" image localhost/berth/berth:test "$bin/berth" "$bin/berth-shim" "$bin/berth-lsp" "$bin/berth-lsp-pod"
"$bin/cluster" image localhost/berth/resident:test "$bin/resident"
"$bin/cluster" image localhost/berth/lspfake:test "$bin/lspfake"
BERTH_TEST_KUBECONFIG=$BERTH_CLUSTER/kubeconfig go test $(hack/race.sh) -p 1 -count=1 -timeout 60m -v -run 'TestConformance|OnANode$|TestCluster' "${suites[@]}"
