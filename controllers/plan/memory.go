// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
)

// memory saves work; nothing depends on it.
type memory struct {
	writes consistency.Writes
	// own are the last runs that were created here; seen is when runs were seen to have ended.
	own  process.Recent[bool]
	seen process.Sightings
}
