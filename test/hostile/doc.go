// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostile sends thousands of objects with extreme spec values, generated from the schemas of the kinds, to a manager. It checks that the
// manager's memory and latency stay within limits and that a well-behaved object beside them is not affected.
//
// OBJECTS is how many objects are created, changed and deleted; the same SEED generates the same objects. Another test runs misbehaving programs
// for ADVERSARY_SECONDS (20); one of them starts CHILDREN processes (5,000). The tests need Linux and a built control plane.
package hostile
