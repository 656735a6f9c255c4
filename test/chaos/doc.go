// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets several clients change objects at random while faults occur at random: the manager, shims, workloads and the control plane are killed,
// processes are paused, the clock jumps, and the disk fills up. After every cycle the system must come to rest, which means that no change is in progress, and
// match the specs: no object is lost, no object has two processes, and nothing remains of deleted objects. Run it with make chaos CYCLES=200 SEED=... .
package chaos
