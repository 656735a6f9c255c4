// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package vdso

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Step sets the difference between the wall clock of a process and the wall clock of the machine, in whole seconds. No other process is affected, because each
// process has a copy-on-write view of the vDSO, the code from which programs read the clocks. Programs that read them in another way, with a system call, are
// not affected either.
//
// No thread of the process may execute __vdso_clock_gettime during the first call for the process. Later calls change only the difference.
func Step(pid int, difference time.Duration) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }()
	begin, end, err := find(pid)
	if err != nil {
		return err
	}
	image := make([]byte, end-begin)
	if _, err := memory.ReadAt(image, begin); err != nil {
		return fmt.Errorf("read the vDSO: %w", err)
	}
	offset, err := function(image, "__vdso_clock_gettime")
	if err != nil {
		return err
	}
	if _, err := memory.WriteAt(clockGettime(int32(difference/time.Second)), begin+offset); err != nil {
		return fmt.Errorf("write the vDSO: %w", err)
	}
	return nil
}

// find returns the addresses of the vDSO of a process.
func find(pid int) (begin, end int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err = fmt.Sscanf(line, "%x-%x ", &begin, &end)
			return begin, end, err
		}
	}
	return 0, 0, errors.New("the process has no vDSO")
}

// function returns where a function begins in the image of a vDSO.
func function(image []byte, name string) (int64, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("parse the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("parse the vDSO: %w", err)
	}
	for _, s := range symbols {
		if s.Name == name && s.Size >= uint64(len(clockGettime(0))) {
			return int64(s.Value), nil
		}
	}
	return 0, fmt.Errorf("the vDSO has no function %s that is large enough", name)
}

// clockGettime returns machine code that makes the system call clock_gettime and, for CLOCK_REALTIME, adds seconds to the result. The seconds are at a multiple of
// four bytes, so that they change atomically.
func clockGettime(seconds int32) []byte {
	code := []byte{
		0xb8, 228, 0, 0, 0, // mov eax, clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
		0x75, 9, // jne to ret
		0x66, 0x90, // nop
		0x48, 0x81, 0x06, // add qword ptr [rsi], seconds
	}
	return append(binary.LittleEndian.AppendUint32(code, uint32(seconds)), 0xc3)
}
