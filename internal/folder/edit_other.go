// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package folder

import (
	"errors"
	"os"
)

// exchange is not implemented, so files are written in place.
func exchange(*os.File, string, string) error { return errors.ErrUnsupported }

func attributes(*os.File) []byte { return nil }

func holder(*os.File) string { return unknownHolder }
