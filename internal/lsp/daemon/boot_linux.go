// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import "github.com/berth-dev/berth/internal/shim"

func bootID() (string, error) { return shim.BootID() }
