#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks what a compiler does not see: generated files are fresh, all is formatted, it builds on other systems, and the README's commands are there.
# Nothing in the tree is changed. All checks run; the first line that begins with FAILED says what to do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
failed=0

check() { # check NAME WHAT-TO-DO COMMAND...
  local name=$1 remedy=$2
  shift 2
  if "$@" >"$temp/out" 2>&1; then
    echo "ok      $name"
  else
    cat "$temp/out"
    echo "FAILED  $name: $remedy"
    failed=1
  fi
}

gen() { go tool -modfile=hack/tools/go.mod controller-gen "$@"; }
empty() { local out; out=$("$@") && [ -z "$out" ] || { echo "$out"; return 1; }; }

crds() {
  mkdir -p "$temp/crd"
  gen crd paths=./api/... "output:crd:dir=$temp/crd" && go run ./hack/crds "$temp/crd" && diff -r "$temp/crd" config/crd/bases
}
deepcopies() {
  mkdir -p "$temp/deepcopy"
  gen object:headerFile=hack/boilerplate.go.txt paths=./api/... "output:object:dir=$temp/deepcopy" &&
    diff "$temp/deepcopy/zz_generated.deepcopy.go" api/v1alpha1/zz_generated.deepcopy.go
}
formatted() { empty gofmt -l api cmd config controllers hack internal samples test; }
headers() {
  empty find api cmd config controllers hack internal samples test -name node_modules -prune -o -name '*.go' \
    -exec grep -L -m1 'SPDX-License-Identifier: Apache-2.0' {} +
}
no_replace() { empty awk '$1 == "replace" || /=>/' go.mod; }
builds() { CGO_ENABLED=0 go build -trimpath -o /dev/null ./...; }
typechecks() { go run ./hack/typecheck "$@"; }
static_shim() {
  CGO_ENABLED=0 go build -trimpath -o "$temp/berth-shim" ./cmd/berth-shim
  empty awk '/^k8s.io|^sigs.k8s.io/' <(go list -deps ./cmd/berth-shim)
}
static_lsp() {
  local program
  # The data path is the standard library's, and that of x/sys; creack/pty comes with the shim's words for processes.
  for program in berth-lsp berth-lsp-pod; do
    CGO_ENABLED=0 go build -trimpath -o "$temp/$program" "./cmd/$program"
    empty awk '/^[a-z0-9.-]+\.[a-z]+\// && !/^(github.com\/berth-dev\/berth\/(cmd\/berth-lsp(-pod)?$|internal\/(lsp|shim|facts))|golang.org\/x\/sys\/|github.com\/creack\/pty$)/' <(go list -deps "./cmd/$program")
  done
}
kustomized() {
  local kubectl=bin/kubectl
  [ -x "$kubectl" ] || kubectl=kubectl
  local folder
  for folder in config/{default,outside,prometheus} samples/laptop-to-cluster/{base,cluster,ingress}; do
    "$kubectl" kustomize "$folder" || return 1
  done
}
chart() { (cd hack/install && go run ./chart -check); }
installation() { (cd hack/install && go mod tidy -diff && go vet ./... && go test -count=1 ./...); }
readme() { grep -q 'make run' README.md && grep -q 'make test' README.md; }
scripts() { local f; for f in hack/*.sh hack/*/*.sh .ci/run; do bash -n "$f" || return 1; done; }

check "CustomResourceDefinitions are fresh" "run make manifests" crds
check "deep copies are fresh" "run make generate" deepcopies
check "gofmt" "run make fmt on the files above" formatted
check "licence headers" "add the two header lines to the files above" headers
check "go vet" "mend what is said above" go vet ./...
check "go.mod is tidy" "run go mod tidy" go mod tidy -diff
check "no replace in go.mod" "go install ...@latest cannot follow a replace; remove it" no_replace
check "builds" "mend what is said above" builds
check "compiles on linux/amd64" "put what is special to arm64 into _arm64.go files" typechecks linux/amd64
check "compiles on darwin/arm64" "put what is special to Linux into _linux.go files" typechecks darwin/arm64
check "compiles on linux/arm64" "put what is special to amd64 into _amd64.go files" typechecks linux/arm64
check "berth-shim has nothing of Kubernetes" "remove the imports above" static_shim
check "berth-lsp and berth-lsp-pod have the standard library and x/sys only" "remove the imports above" static_lsp
check "kustomize" "mend config/ or samples/laptop-to-cluster/" kustomized
check "chart is fresh" "run make chart" chart
check "chart and config/default are one installation" "mend charts/berth or config/, as is said above" installation
check "README shows make run and make test" "put both commands back" readme
check "scripts parse" "mend the script above" scripts
exit "$failed"
