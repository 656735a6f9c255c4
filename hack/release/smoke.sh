#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks the Linux archive in dist/ as a new user would, with only the programs in /usr/bin and /bin, and serves a page with a DevServer.
# If the caller is root, the test runs as the user nobody.
set -euo pipefail
archive=$(ls "$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"/dist/berth_*_linux_"$(dpkg --print-architecture 2>/dev/null || uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')".tar.gz)
home=$(mktemp -d /tmp/berth-smoke.XXXXXX)
trap 'rm -rf "$home"' EXIT
cp "$archive" "$home/archive.tar.gz"
run=(env -i)
if [ "$(id -u)" -eq 0 ]; then
  chown -R nobody "$home"
  run=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups env -i)
fi
"${run[@]}" HOME="$home" PATH=/usr/bin:/bin LANG=C.UTF-8 /bin/bash -euo pipefail -c '
cd "$HOME"
tar xzf archive.tar.gz
PATH=$(echo "$HOME"/berth_*):$PATH
berth version
mkdir page
echo "it works" > page/index.html
cat > web.yaml <<EOF
apiVersion: berth.dev/v1alpha1
kind: DevServer
metadata: {name: web}
spec:
  process: {command: [/usr/bin/python3, -m, http.server, --bind, 127.0.0.1, \$(PORT)], workingDir: $HOME/page}
EOF
trap "berth down" EXIT
berth up --detach -f web.yaml
for _ in $(seq 600); do
  status=$(berth status devserver/web) || true
  url=$(grep -o "http://[^ ]*" <<<"$status" | head -n 1) || true
  if [ -n "$url" ] && [ "$(curl -fs "$url")" = "it works" ]; then echo "$status"; exit 0; fi
  sleep 0.1
done
echo "the DevServer did not become ready within a minute:" >&2
berth status devserver/web >&2
exit 1
'
echo "smoke test passed"
