// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster installs Berth into a real cluster as its users do, by Helm and by kustomize, and sees that it works there and what it survives.
//
// `make test-cluster` runs it on the node of `make cluster`. It wants a cluster without Berth, of which this machine is the only node.
package cluster
