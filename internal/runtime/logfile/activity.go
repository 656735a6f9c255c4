// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"errors"
	"os"
	"time"

	"github.com/berth-dev/berth/internal/runtime"
)

// LastActivity returns the time of the last write to a log. It returns runtime.ErrNotFound if the log does not exist or is empty.
func LastActivity(path string) (time.Time, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return time.Time{}, runtime.ErrNotFound
	}
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}
