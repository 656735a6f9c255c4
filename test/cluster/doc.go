// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster installs Berth into a real cluster with Helm and with kustomize, and checks that Berth works and survives failures.
//
// `make test-cluster` runs the package on the node of `make cluster`. The specs require a cluster without Berth whose only node is this machine.
package cluster
