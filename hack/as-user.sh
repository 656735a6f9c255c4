#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the end-to-end suite as an ordinary user. The suite runs from a copy of the files that it needs, because an ordinary user may not be able to read a
# checkout that belongs to root. Needs root to switch the user; if the caller is already an ordinary user, the suite runs as that user.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
assets=${KUBEBUILDER_ASSETS:-$root/bin}

if [ "$(id -u)" -ne 0 ]; then
  echo "running as $(id -un)"
  cd "$root/test/e2e" && exec "$root/bin/e2e.test" "$@"
fi

home=$(mktemp -d /tmp/berth-user.XXXXXX)
trap 'rm -rf "$home"' EXIT
mkdir -p "$home/berth/bin" "$home/berth/test" "$home/tmp"
cp "$root"/bin/{berth,kubectl-berth,berth-apiserver,berth-shim,berth-lsp,gohello,checkmodule,gopls,e2e.test} "$assets/kubectl" "$home/berth/bin/"
cp -R "$root/test/e2e" "$home/berth/test/"
cp -R "$root/samples" "$root/config" "$root/docs" "$root/README.md" "$home/berth/"
chown -R nobody "$home"
cd "$home/berth/test/e2e"
echo "running as $(id -un nobody) in $home"
setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups \
  env -u XDG_STATE_HOME -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u XDG_RUNTIME_DIR \
  HOME="$home" TMPDIR="$home/tmp" KUBEBUILDER_ASSETS="$home/berth/bin" "$home/berth/bin/e2e.test" "$@"
