// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim embeds the admission policy that claims objects when they are created.
package claim

import _ "embed"

// HostPlaceholder is the text in Policy to replace with the name of the host that claims the objects.
const HostPlaceholder = "BERTH_HOST"

// Policy is a MutatingAdmissionPolicy and Binding is its binding, both as YAML. They need Kubernetes 1.36. The controllers also work without them.
var (
	//go:embed policy.yaml
	Policy []byte
	//go:embed binding.yaml
	Binding []byte
)
