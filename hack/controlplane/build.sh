#!/usr/bin/env bash
# Builds the control plane that berth up runs and that the tests use, from pinned Go modules, into the given folder (default: bin/ of the project).
# Further arguments name additional programs of Kubernetes to build for a node: kube-scheduler, kubelet and kube-proxy.
# Programs that already exist in the pinned version are not built again, so a second call takes no time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${1:-$here/../../bin}" && cd "${1:-$here/../../bin}" && pwd)
cd "$here"

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
etcd=$(go list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)
stamp="$out/.controlplane"
pinned="kubernetes $kubernetes etcd $etcd go $(go env GOVERSION)"
flags="-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"

declare -A packages=(
  [etcd]=go.etcd.io/etcd/server/v3
  [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver
  [kube-controller-manager]=k8s.io/kubernetes/cmd/kube-controller-manager
  [kubectl]=k8s.io/kubernetes/cmd/kubectl
  [kube-scheduler]=k8s.io/kubernetes/cmd/kube-scheduler
  [kubelet]=k8s.io/kubernetes/cmd/kubelet
  [kube-proxy]=k8s.io/kubernetes/cmd/kube-proxy
)

[ "$(cat "$stamp" 2>/dev/null)" = "$pinned" ] || current=no

# Remove all programs of another version. Otherwise a later call would consider a program current that this call does not build.
if [ "${current:-yes}" != yes ]; then
  for name in "${!packages[@]}"; do rm -f "$out/$name"; done
fi

missing=()
for name in etcd kube-apiserver kube-controller-manager kubectl "${@:2}"; do
  [ -x "$out/$name" ] || missing+=("$name")
done
if [ "${#missing[@]}" -gt 0 ]; then
  echo "Building ${missing[*]} ($pinned). The first time this takes about 10 minutes on 2 cores; later, seconds." >&2
fi

for name in "${missing[@]}"; do
  started=$SECONDS
  CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$out/.$name" "${packages[$name]}" &
  build=$!
  trap 'kill "$build" 2>/dev/null || true' EXIT
  while kill -0 "$build" 2>/dev/null; do
    # Print a line every 30 s to show progress.
    if [ $(( (SECONDS - started) % 30 )) -eq 29 ]; then echo "  still building $name, $((SECONDS - started)) s" >&2; fi
    sleep 1
  done
  wait "$build"
  trap - EXIT
  mv "$out/.$name" "$out/$name"
  echo "  built $name in $((SECONDS - started)) s" >&2
done
echo "$pinned" > "$stamp"
