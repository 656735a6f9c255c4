// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim carries the policy by which objects are claimed at their creation.
package claim

import _ "embed"

// HostPlaceholder stands in Policy for the name of the host that claims.
const HostPlaceholder = "BERTH_HOST"

// Policy is a MutatingAdmissionPolicy, and Binding what puts it into force; both are YAML. They need Kubernetes 1.36; the controllers do without.
var (
	//go:embed policy.yaml
	Policy []byte
	//go:embed binding.yaml
	Binding []byte
)
