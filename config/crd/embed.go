// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crd embeds the CustomResourceDefinitions of Berth, so that a binary can install them.
package crd

import "embed"

// Bases contains the generated definitions in the directory bases, one file per kind.
//
//go:embed bases/*.yaml
var Bases embed.FS
