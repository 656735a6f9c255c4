#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs all commands with go install ...@latest, as a user does, but from a local module proxy that contains the files that git tracks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
temp=$(mktemp -d)
trap 'chmod -R u+w "$temp"; rm -rf "$temp"' EXIT
# The go command caches an index of a module's files by the module's version, also in the build cache, so each state of the files needs its own version.
version=v0.0.1-test.x$({ git ls-files -s; git diff HEAD; } | sha256sum | cut -c 1-12)

# Writes one version of each module in the format of the module proxy. A module does not contain the folders of nested modules.
python3 - "$temp/proxy" "$version" <<'EOF'
import pathlib, subprocess, sys, zipfile
proxy, version = pathlib.Path(sys.argv[1]), sys.argv[2]
files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
nested = [f[:-len("go.mod")] for f in files if f.endswith("/go.mod")]
for folder in ["", "cmd/berth-apiserver/"]:
    path = ("github.com/berth-dev/berth/" + folder).rstrip("/")
    into = proxy / path / "@v"
    into.mkdir(parents=True)
    (into / "list").write_text(version + "\n")
    (into / f"{version}.info").write_text('{"Version": "%s", "Time": "2026-01-01T00:00:00Z"}' % version)
    (into / f"{version}.mod").write_bytes(pathlib.Path(folder + "go.mod").read_bytes())
    with zipfile.ZipFile(into / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            inner = [n for n in nested if n != folder and n.startswith(folder) and file.startswith(n)]
            if file.startswith(folder) and not inner and not pathlib.Path(file).is_symlink():
                archive.write(file, f"{path}@{version}/{file[len(folder):]}")
EOF

GOPROXY="file://$temp/proxy,$(go env GOPROXY)"
# The checksum database knows only published versions, and the module cache must not keep the version that this script makes.
export GOPROXY GONOSUMDB="github.com/berth-dev/*" GOBIN=$temp/bin CGO_ENABLED=0
cd "$temp"
trap 'rm -rf "$(go env GOMODCACHE)"/cache/download/github.com/berth-dev; chmod -R u+w "$temp" "$(go env GOMODCACHE)"/github.com/berth-dev || true; rm -rf "$temp" "$(go env GOMODCACHE)"/github.com/berth-dev' EXIT
go install -trimpath "github.com/berth-dev/berth/cmd/...@latest"
go install -trimpath "github.com/berth-dev/berth/cmd/berth-apiserver@latest"
"$temp/bin/berth" version
for program in berth berth-apiserver berth-lsp berth-lsp-pod berth-shim; do
  [ -x "$temp/bin/$program" ] || { echo "go install did not install $program" >&2; exit 1; }
done
echo "installed all commands with go install"
