// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostile sends many objects with extreme spec values, generated from the schemas of the kinds, to a manager. It checks that the manager's memory
// and latency stay within limits and that a well-behaved object is not affected.
//
// Environment variables configure the tests. OBJECTS is the number of objects that are created, changed and deleted (default 1,000). SEED selects the extreme
// values; which client creates which object still differs between runs. ADVERSARY_SECONDS is how long another test runs misbehaving programs (default 20).
// UNDECODABLE is the number of objects that do not decode, which a further test creates (default 1,000).
// CHILDREN is the number of processes that one of these programs starts (default 5,000). The tests need Linux and a built control plane.
package hostile
