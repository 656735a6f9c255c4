#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds programs of Kubernetes and etcd, which the tests use, from pinned Go modules: hack/controlplane/build.sh FOLDER PROGRAM... .
# Programs that already exist in the pinned version are not rebuilt, so a second call returns quickly.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$here"

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
etcd=$(go list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)
stamp="$out/.controlplane"
pinned="kubernetes $kubernetes etcd $etcd go $(go env GOVERSION)"

declare -A packages=(
  [etcd]=go.etcd.io/etcd/server/v3
  [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver
  [kube-controller-manager]=k8s.io/kubernetes/cmd/kube-controller-manager
  [kubectl]=k8s.io/kubernetes/cmd/kubectl
  [kube-scheduler]=k8s.io/kubernetes/cmd/kube-scheduler
  [kubelet]=k8s.io/kubernetes/cmd/kubelet
  [kube-proxy]=k8s.io/kubernetes/cmd/kube-proxy
)

# Remove all programs of another version, because this call does not build all of them, and a later call would treat the rest as current.
if [ "$(cat "$stamp" 2>/dev/null)" != "$pinned" ]; then
  for name in "${!packages[@]}"; do rm -f "$out/$name"; done
fi

missing=()
for name in "${@:2}"; do
  [ -x "$out/$name" ] || missing+=("$name")
done
if [ "${#missing[@]}" -gt 0 ]; then
  echo "building ${missing[*]} ($pinned); this takes minutes the first time and seconds later" >&2
fi
for name in "${missing[@]}"; do
  # make run builds kubectl in the background, so another call may build the same program at the same time.
  ../compile.sh . "$out/.$name.$$" "${packages[$name]}" \
    "-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
  mv "$out/.$name.$$" "$out/$name"
done
echo "$pinned" > "$stamp"
