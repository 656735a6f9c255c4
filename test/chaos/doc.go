// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets several clients change objects at random while processes are killed at random: the manager, shims, workloads, kube-apiserver,
// etcd and kube-controller-manager. After every cycle the system must come to rest and match the specs: no object is lost, no object has two
// processes, and nothing remains of deleted objects. Run it with make chaos CYCLES=200 SEED=... .
package chaos
