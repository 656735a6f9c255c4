// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && amd64)

package clocks

import (
	"errors"
	"testing"

	"github.com/berth-dev/berth/test/need"
)

func TestSteps(t *testing.T) {
	need.Machine(t, errors.New("the clock of single processes can be stepped only on linux/amd64"))
}
