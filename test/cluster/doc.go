// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster installs Berth into a real cluster with Helm and with kustomize, and checks that it works and which failures it survives.
//
// `make test-cluster` runs it on the node of `make cluster`. It requires a cluster without Berth whose only node is this machine.
package cluster
