// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shim"
)

type puncher = shim.Puncher

// firstData returns the offset of the first byte that is not punched out.
func firstData(fd int) (int64, error) {
	offset, err := unix.Seek(fd, 0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // no data at all
		return unix.Seek(fd, 0, io.SeekEnd)
	}
	return offset, err
}
