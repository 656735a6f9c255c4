// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostile sends a manager thousands of objects whose specs have extreme values, generated from the schemas of the kinds, and sees that it stays
// small and fast, and that a well-behaved object beside them does not notice.
//
// OBJECTS is how many objects are created, changed and deleted; SEED generates the same objects again. Another test runs programs that misbehave, for
// ADVERSARY_SECONDS (20); one of them starts CHILDREN processes (5,000). The tests need Linux and a built control plane.
package hostile
