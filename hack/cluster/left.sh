#!/usr/bin/env bash
# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints everything on this machine that belongs to a cluster in the folder $BERTH_CLUSTER, one item per line: compare the output before the cluster is created
# with the output after it is deleted. Items of other clusters and engines are not printed, except in folders that all of them share.
set -uo pipefail
group=$(basename "$BERTH_CLUSTER")

# The programs of the cluster have its folder in their arguments; this script and its callers have it only in their environment.
for process in /proc/[0-9]*; do
  words=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") || continue
  case $words in *"$BERTH_CLUSTER/"*) echo "process ${process#/proc/}: ${words:0:200}" ;; esac
done
awk -v dir="$BERTH_CLUSTER" 'index($5, dir) == 1 { print "mount " $5 }' /proc/self/mountinfo
find /sys/fs/cgroup -maxdepth 2 -type d -name "$group" | sed 's/^/cgroup /'
if command -v ip >/dev/null; then
  ip -o link show type bridge | awk -F': ' '/berth/ { print "link " $2 }'
  ip netns list | awk '/^cni-/ { print "network namespace " $1 }'
fi
if command -v nft >/dev/null; then
  nft list tables 2>/dev/null | grep ' kube-proxy$'
  nft list chains 2>/dev/null | grep -oE 'chain (KUBE|CNI)[^ ]*'
fi
if command -v iptables >/dev/null; then iptables -S FORWARD 2>/dev/null | grep berth; fi
for folder in "$BERTH_CLUSTER" /var/lib/kubelet/device-plugins /var/lib/cni/results /var/log/pods /var/log/containers; do
  find "$folder" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/file /'
done
# IP forwarding is not included, because a Docker Engine that starts in the meantime also sets it.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  echo "setting $setting $(cat "/proc/sys/$setting" 2>/dev/null)"
done
