// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets several clients do random things to objects while everything that Berth consists of is killed at random: manager, shims,
// workloads, kube-apiserver and etcd. After every cycle the world has to come to rest and to be what the specs say: nothing lost, nothing
// double, nothing left. make chaos CYCLES=200 SEED=... runs it.
package chaos
