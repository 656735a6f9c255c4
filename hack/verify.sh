#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks what a compiler does not check: generated files are up to date, all code is formatted, it compiles for other systems, and the README shows the main commands.
# The script changes no files. It runs all checks; for each check that fails, a line that begins with FAILED states what to do.
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
  gen crd paths=./api/v1alpha1 "output:crd:dir=$temp/crd" && go run ./hack/crds "$temp/crd" && diff -r "$temp/crd" config/crd/bases
}
deepcopies() {
  mkdir -p "$temp/deepcopy"
  gen object:headerFile=hack/boilerplate.go.txt paths=./api/v1alpha1 "output:object:dir=$temp/deepcopy" &&
    diff "$temp/deepcopy/zz_generated.deepcopy.go" api/v1alpha1/zz_generated.deepcopy.go
}
applies() { # this generator can only write into the package, so it gets a copy
  local root=$PWD
  mkdir -p "$temp/tree" && cp -r api go.mod go.sum "$temp/tree" && rm -r "$temp/tree/api/v1alpha1/applyconfiguration" &&
    (cd "$temp/tree" && go tool -modfile="$root/hack/tools/go.mod" controller-gen "applyconfiguration:headerFile=$root/hack/boilerplate.go.txt" paths=./api/v1alpha1) &&
    diff -r "$temp/tree/api/v1alpha1/applyconfiguration" api/v1alpha1/applyconfiguration
}
reference() { mkdir -p "$temp/reference" && hack/reference/generate.sh "$temp/reference" && diff -r "$temp/reference" docs/reference; }
formatted() { empty gofmt -l api cmd config controllers hack internal samples test; }
headers() {
  empty find api cmd config controllers hack internal samples test -name node_modules -prune -o -name '*.go' \
    -exec grep -L -m1 'SPDX-License-Identifier: Apache-2.0' {} +
}
no_replace() { empty awk '$1 == "replace" || /=>/' go.mod cmd/berth-apiserver/go.mod; }
apiserver() { (cd cmd/berth-apiserver && go mod tidy -diff && go vet ./... && go test ./internal/...); }
builds() { CGO_ENABLED=0 go build -trimpath -o /dev/null ./...; }
typechecks() { go run ./hack/typecheck "$@"; }
static_shim() {
  CGO_ENABLED=0 go build -trimpath -o "$temp/berth-shim" ./cmd/berth-shim
  empty awk '/^k8s.io|^sigs.k8s.io/' <(go list -deps ./cmd/berth-shim)
}
static_lsp() {
  local program
  # These programs use only the standard library and x/sys; creack/pty is a dependency of internal/shim, which starts programs and finds their trees.
  for program in berth-lsp berth-lsp-pod; do
    CGO_ENABLED=0 go build -trimpath -o "$temp/$program" "./cmd/$program"
    empty awk '/^[a-z0-9.-]+\.[a-z]+\// && !/^(github.com\/berth-dev\/berth\/(cmd\/berth-lsp(-pod)?$|internal\/(lsp|shim|signals|facts|procstat|statedir|certs|descriptors))|golang.org\/x\/sys\/|github.com\/creack\/pty$)/' <(go list -deps "./cmd/$program")
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
chart() {
  (cd hack/install && go run ./chart -to "$temp") &&
    diff -r "$temp/charts/berth/files" charts/berth/files && diff "$temp/charts/berth/README.md" charts/berth/README.md
}
installation() { (cd hack/install && go mod tidy -diff && go vet ./... && go test -count=1 ./...) && (cd hack/apilint && go mod tidy -diff && go vet ./...); }
compatible() { (cd hack/crdify && go mod tidy -diff && go vet ./... && go test -count=1 ./... && go run . released ../../config/crd/bases); }
readme() { grep -q 'make run' README.md && grep -q 'make test' README.md; }
# An action is named by the digest of a commit, with the version as a comment, because a tag can be moved to other code.
pinned() { ! grep -nE '^[^#]*\buses"? *:' .github/workflows/* | grep -vE ' uses: (\./[^ ]+|[^ @]+@[0-9a-f]{40} # v[0-9]+(\.[0-9]+)+)$'; }
scripts() { local f; for f in hack/*.sh hack/*/*.sh .ci/run; do bash -n "$f" || return 1; done; }

check "CustomResourceDefinitions are up to date" "run make manifests" crds
check "CustomResourceDefinitions are compatible with the last release" "list the changes above in CHANGELOG.md, then run make released-crds" compatible
check "deep-copy functions are up to date" "run make generate" deepcopies
check "apply configurations are up to date" "run make generate" applies
check "docs/reference is up to date" "run make reference" reference
check "gofmt" "run make fmt on the files above" formatted
check "license headers" "add the two header lines to the files above" headers
check "go vet" "fix the problems above" go vet ./...
check "go.mod is tidy" "run go mod tidy" go mod tidy -diff
check "no replace in go.mod" "go install ...@latest cannot follow a replace; remove it" no_replace
check "cmd/berth-apiserver is tidy, and passes go vet and its tests" "fix the problems above" apiserver
check "builds" "fix the errors above" builds
check "compiles on linux/amd64" "move arm64-specific code to _arm64.go files" typechecks linux/amd64
check "compiles on darwin/arm64" "move Linux-specific code to _linux.go files" typechecks darwin/arm64
check "compiles on linux/arm64" "move amd64-specific code to _amd64.go files" typechecks linux/arm64
check "berth-shim does not import Kubernetes packages" "remove the imports above" static_shim
check "berth-lsp and berth-lsp-pod import only the standard library and x/sys" "remove the imports above" static_lsp
check "kustomize" "fix config/ or samples/laptop-to-cluster/" kustomized
check "chart is up to date" "run make chart" chart
check "chart and config/default create the same objects" "fix charts/berth or config/ as shown above" installation
check "README shows make run and make test" "put both commands back" readme
check "plain English" "replace the words above; hack/vocabulary.txt explains" hack/vocabulary.sh
check "workflows pin actions to digests" "use OWNER/NAME@DIGEST # vVERSION in the lines above" pinned
check "scripts parse" "fix the script above" scripts
exit "$failed"
