// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostile sends many objects with extreme spec values, generated from the schemas of the kinds, to a manager. It checks that the manager's memory
// and latency stay within limits and that a well-behaved object is not affected.
//
// OBJECTS is the number of objects that are created, changed and deleted (1,000). SEED selects the extreme values; which client creates which object
// still differs between runs. Another test runs misbehaving programs for ADVERSARY_SECONDS (20); one of them starts CHILDREN processes (5,000). The tests
// need Linux and a built control plane.
package hostile
