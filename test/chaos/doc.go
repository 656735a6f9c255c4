// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets several clients change objects at random while the parts of Berth are killed at random: manager, shims, workloads,
// kube-apiserver and etcd. After every cycle the system must come to rest and match the specs: no object lost, no process started twice, nothing
// left behind. Run it with make chaos CYCLES=200 SEED=... .
package chaos
