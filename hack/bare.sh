#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command on a bare machine: hack/bare.sh [-k PROGRAM]... COMMAND [ARG...]. The command finds only Go, git, make, the C compiler if there is one, the base
# system of Debian (packages that are essential or required), and each PROGRAM. No module of Python is installed.
#
# For root, a mount namespace replaces the directories of programs, which also hides programs that are named by their full path. For other users, or if
# namespaces are not permitted, the script reduces PATH only, and prints that.
set -euo pipefail
keep=(git make)
while [ "${1:-}" = -k ]; do
  keep+=("${2:?}")
  shift 2
done
[ $# -gt 0 ] || { echo "usage: hack/bare.sh [-k PROGRAM]... COMMAND [ARG...]" >&2; exit 2; }
command -v dpkg-query >/dev/null || { echo "hack/bare.sh: needs dpkg, which knows the programs of the base system" >&2; exit 2; }

# Prints the paths of the programs that are not hidden. A program can be a link that update-alternatives manages.
programs() {
  local base path
  mapfile -t base < <(dpkg-query -W -f '${Package} ${Essential} ${Priority}\n' | awk '$2 == "yes" || $3 == "required" {print $1}')
  {
    dpkg-query -L "${base[@]}" | sed -nE 's#^(/usr)?(/s?bin/[^/]+)$#/usr\2#p'
    for path in awk "${keep[@]}"; do PATH="/usr/sbin:/usr/bin:$PATH" command -v "$path" || true; done
    compgen -G '/usr/bin/*' | grep -E '/(g?cc(-[0-9.]+)?|cpp(-[0-9.]+)?|as|ar|ld(\.[a-z]+)?|nm|ranlib|strip|[a-z0-9_]+-linux-gnu[a-z0-9]*-[-a-z0-9.+]+)$' || true
  } | while IFS= read -r path; do
    if [ -e "$path" ]; then printf '%s\n' "$path" "$(readlink -f "$path")"; fi
  done | sort -u
}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
goroot=$(go env GOROOT)
unset BERTH_REQUIRE_PROGRAMS
status=0

if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
  mkdir -p "$stage"/{empty,usr/bin,usr/sbin}
  programs | while IFS= read -r path; do
    case $(dirname "$path") in
      /usr/sbin | /sbin) cp -a "$path" "$stage/usr/sbin/" ;;
      *) cp -a "$path" "$stage/usr/bin/" ;;
    esac
  done
  # shellcheck disable=SC2016 # the inner shell expands these
  unshare --mount --propagation private bash -euo pipefail -c '
    stage=$1
    shift
    for directory in /usr/local/bin /usr/local/sbin /usr/lib/python3/dist-packages /usr/local/lib/python3*/dist-packages; do
      if [ -d "$directory" ]; then mount --bind "$stage/empty" "$directory"; fi
    done
    for directory in bin sbin; do
      if [ ! -L "/$directory" ]; then mount --bind "$stage/usr/$directory" "/$directory"; fi
      mount --bind "$stage/usr/$directory" "/usr/$directory"
    done
    exec "$@"' bare "$stage" env PATH="$goroot/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@" || status=$?
else
  echo "hack/bare.sh: only root in a mount namespace can hide programs that are named by their full path, such as /usr/bin/python3; PATH does not contain them" >&2
  mkdir "$stage/bin"
  programs | while IFS= read -r path; do ln -sf "$path" "$stage/bin/"; done
  env PATH="$goroot/bin:$stage/bin" "$@" || status=$?
fi
exit "$status"
