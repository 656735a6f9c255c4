// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim carries the policy by which objects are claimed at their creation.
package claim

import _ "embed"

// BindingKind is the kind of the object that puts the policy into force.
const BindingKind = "MutatingAdmissionPolicyBinding"

// Policy is a MutatingAdmissionPolicy and its binding, as YAML. It needs Kubernetes 1.36; the controllers do without.
//
//go:embed policy.yaml
var Policy []byte
