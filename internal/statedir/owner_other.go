// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package statedir

import "io/fs"

func owner(fs.FileInfo) (uid int, known bool) { return 0, false }
