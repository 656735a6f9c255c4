// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crd carries the CustomResourceDefinitions of Berth, so that a binary can install them.
package crd

import "embed"

// Bases holds the generated definitions, a file per kind, below the folder bases.
//
//go:embed bases/*.yaml
var Bases embed.FS
