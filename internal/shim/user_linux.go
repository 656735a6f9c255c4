// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Credential returns the credential to execute a program with. It is nil for a nil user, which means the credential of the caller.
func (u *User) Credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// Own makes the user the owner of an open file, so that a program can open it again, as /dev/stdout or /dev/pts/N. The group of the file remains.
func (u *User) Own(file *os.File) error {
	if u == nil {
		return nil
	}
	return file.Chown(int(u.UID), -1)
}

// access calls f on a thread that has the file access rights of this user. The caller can thus detect, before the fork, that the user may not execute a
// program. No other thread of this process is affected.
func (u *User) access(f func()) error {
	if u == nil {
		f()
		return nil
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with this goroutine
		err := u.assume()
		if err == nil {
			f()
		}
		result <- err
	}()
	return <-result
}

// assume changes the groups and the file system IDs of the calling thread. The kernel then drops root's file capabilities from the thread.
func (u *User) assume() error {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	// unix.Setgroups would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); errno != 0 {
		return fmt.Errorf("set the groups of user %s: %w", u.Name, errno)
	}
	_ = unix.Setfsgid(int(u.GID))
	_ = unix.Setfsuid(int(u.UID))
	// Setfsgid and Setfsuid report no failure. SetfsuidRetUid(-1) changes nothing and returns the current value.
	if uid, _ := unix.SetfsuidRetUid(-1); uid != int(u.UID) {
		return fmt.Errorf("access files as user %s: the system does not permit it", u.Name)
	}
	return nil
}
