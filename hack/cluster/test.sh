#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates a cluster, runs the suites that need a real node on it, and deletes it even if a suite fails. If a cluster is already up, the script uses that one and
# keeps it. If this machine cannot run a node, the script prints what is missing and the names of the skipped suites.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$KUBEBUILDER_ASSETS
suites=(./internal/runtime/pod ./test/cluster)

if [ -e "$BERTH_CLUSTER/kubeconfig" ]; then mine=no; else mine=yes; fi
before=$(hack/cluster/left.sh)
# Deletes the cluster that this script created, and fails if anything of it is left.
down() {
  [ "$mine" = yes ] || return 0
  "$bin/cluster" down || return 1
  local left
  left=$(comm -13 <(sort <<<"$before") <(hack/cluster/left.sh | sort))
  if [ -n "$left" ]; then
    printf 'left behind by the cluster:\n%s\n' "$left"
    return 1
  fi
}
status=0
"$bin/cluster" up || status=$?
if [ "$status" -eq 77 ]; then
  echo "skipped, because there is no node (see above): TestConformance, TestPods_OnANode, TestTerminals_OnANode and TestCluster of ${suites[*]}"
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
