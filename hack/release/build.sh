#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes the files of a release to dist/: hack/release/build.sh VERSION [OS/ARCH...]
# For each platform: an archive and an SBOM; for Linux also a deb and an rpm package. Further files are the Helm chart, the manifest of the kubectl plugin
# manager krew, a Homebrew formula, and the checksums of all files. The only network access is to the Go module proxy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${1:-}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || { echo "release: VERSION must be a version such as v0.1.0, not \"$version\"" >&2; exit 2; }
platforms=("${@:2}")
[ "${#platforms[@]}" -gt 0 ] || platforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64)
number=${version#v}
dist=$PWD/dist
download=https://github.com/berth-dev/berth/releases/download/$version
commit_time=$(git log -1 --format=%ct)
kubernetes=$(cd cmd/berth-apiserver && go list -m -f '{{.Version}}' k8s.io/kubernetes)
rm -rf "$dist"
mkdir -p "$dist"

programs() { # programs DIRECTORY OS ARCH
  local names=(./cmd/berth)
  if [ "$2" = linux ]; then names=(./cmd/berth ./cmd/berth-shim ./cmd/berth-lsp ./cmd/berth-lsp-pod); fi
  GOOS=$2 GOARCH=$3 CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/berth-dev/berth/internal/cli.release=$version" -o "$1/" "${names[@]}"
  if [ "$2" = linux ]; then
    GOOS=$2 GOARCH=$3 hack/compile.sh cmd/berth-apiserver "$1/berth-apiserver" . "-X k8s.io/component-base/version.gitVersion=$kubernetes"
  fi
}

# The same commit produces the same archive.
archive() { # archive DIRECTORY
  local name
  name=$(basename "$1")
  tar -C "$dist" --sort=name --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner --mtime="@$commit_time" -cf - "$name" | gzip -n -9 > "$dist/$name.tar.gz"
}

packages() { # packages DIRECTORY ARCH
  local packager
  for packager in deb rpm; do
    sed -e "s|@VERSION@|$number|; s|@ARCH@|$2|; s|@DIRECTORY@|$1|" hack/release/nfpm.yaml > "$dist/nfpm.yaml"
    SOURCE_DATE_EPOCH=$commit_time go tool -modfile=hack/release/go.mod nfpm package --config "$dist/nfpm.yaml" --packager "$packager" --target "$dist/" >/dev/null
    rm "$dist/nfpm.yaml"
  done
}

checksum() { sha256sum "$dist/$1" | cut -d ' ' -f 1; }

for platform in "${platforms[@]}"; do
  os=${platform%/*} arch=${platform#*/}
  folder=$dist/berth_${number}_${os}_$arch
  echo "building $platform" >&2
  mkdir "$folder"
  programs "$folder" "$os" "$arch"
  (cd hack/install && CGO_ENABLED=0 go run -trimpath ./sbom "$folder"/berth*) > "$folder.cdx.json"
  cp LICENSE README.md CHANGELOG.md "$folder/"
  archive "$folder"
  if [ "$os" = linux ]; then packages "$folder" "$arch"; fi
  rm -rf "$folder"
done

if [ -x bin/helm ]; then
  bin/helm package charts/berth --version "$number" --app-version "$number" --destination "$dist" >/dev/null
else
  echo "bin/helm does not exist (make helm builds it); leaving out the chart" >&2
fi

# krew and Homebrew download the archives.
{
  sed -e "s|@VERSION@|$version|" hack/release/krew.yaml
  for platform in "${platforms[@]}"; do
    name=berth_${number}_${platform/\//_}
    printf -- '  - selector:\n      matchLabels: {os: %s, arch: %s}\n    uri: %s/%s.tar.gz\n    sha256: %s\n    files: [{from: "%s/*", to: .}]\n    bin: berth\n' \
      "${platform%/*}" "${platform#*/}" "$download" "$name" "$(checksum "$name.tar.gz")" "$name"
  done
} > "$dist/krew.yaml"
{
  printf 'class Berth < Formula\n  desc "Processes for coding agents, as Kubernetes resources"\n  homepage "https://github.com/berth-dev/berth"\n  version "%s"\n  license "Apache-2.0"\n\n' "$number"
  for platform in "${platforms[@]}"; do
    os=${platform%/*} name=berth_${number}_${platform/\//_}
    printf '  if OS.%s? && Hardware::CPU.%s?\n    url "%s/%s.tar.gz"\n    sha256 "%s"\n  end\n' \
      "${os/darwin/mac}" "$([ "${platform#*/}" = arm64 ] && echo arm || echo intel)" "$download" "$name" "$(checksum "$name.tar.gz")"
  done
  printf '\n  def install\n    bin.install Dir["berth*"]\n    bin.install_symlink bin/"berth" => "kubectl-berth"\n    bin.install_symlink bin/"berth" => "kubectl_complete-berth"\n  end\n\n  test do\n    assert_match "%s", shell_output("#{bin}/berth version")\n  end\nend\n' "$version"
} > "$dist/berth.rb"
(cd "$dist" && sha256sum -- * > checksums.txt)
(cd "$dist" && ls -l)
