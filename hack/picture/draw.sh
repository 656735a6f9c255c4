#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Draws docs/images/status.svg, the picture of the README, from a session with the programs in bin/: make picture.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
up=
end() {
  if [ -n "$up" ]; then kill -INT "$up" && wait "$up" || true; fi
  rm -rf "$work"
}
trap end EXIT
export PATH=$PWD/bin:$PATH KUBECONFIG=$work/state/kubeconfig KUBEBUILDER_ASSETS=$PWD/bin
cat >"$work/objects.yaml" <<'Y'
apiVersion: berth.dev/v1alpha1
kind: DevServer
metadata: {name: web}
spec: {process: {command: [gohello]}}
---
apiVersion: berth.dev/v1alpha1
kind: Instance
metadata: {name: agent}
spec: {process: {command: [sh, -c, "printf 'Apply this change? [y/N] '; read answer; exec sleep infinity"]}}
---
apiVersion: berth.dev/v1alpha1
kind: DevServer
metadata: {name: broken}
spec: {process: {command: [sh, -c, "echo 'Error: Cannot find module express' >&2; exit 1"]}}
Y
berth up --state-dir "$work/state" -f "$work/objects.yaml" >"$work/up.log" 2>&1 &
up=$!
until kubectl wait --for=condition=Ready devserver/web instance/agent --timeout=10s >/dev/null 2>&1; do
  kill -0 "$up" || { cat "$work/up.log"; exit 1; }
done
kubectl wait --for=condition=AwaitingInput instance/agent --timeout=30s >/dev/null
show() {
  echo "\$ $1"
  eval "$1" 2>&1
  echo
}
kill_web='kill -9 "$(kubectl get devserver web -o jsonpath={.status.process.pid})"'
{
  show "berth status"
  show "$kill_web"
  kubectl wait --for=jsonpath='{.status.incarnation}'=2 devserver/web --timeout=30s >/dev/null
  kubectl wait --for=condition=Ready devserver/web --timeout=30s >/dev/null
  show "berth status devserver/web"
} >"$work/session"
mkdir -p docs/images
go run ./hack/picture <"$work/session" >"$work/status.svg"
mv "$work/status.svg" docs/images/status.svg
echo "wrote docs/images/status.svg"
