// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// bootName is the file with the ID of the last boot in which a manager used the state directory. Every manager writes it before it starts a process. So if it
// has the ID of another boot, every process that the state directory describes was started before this boot. Times do not prove this, because the clock may be
// set after the boot.
const bootName = "boot.json"

// lastBoot is the content of the file bootName.
type lastBoot struct {
	BootID string `json:"bootID"`
}

// enterBoot records this boot. In the first call after a boot, it first removes records that are damaged, for example by a power failure: their processes cannot
// be alive, so the records must not block their UIDs. Without a readable file bootName, damaged records may belong to this boot, and stay.
func (h *Host) enterBoot() error {
	path := filepath.Join(h.options.StateDir, bootName)
	var last lastBoot
	known, err := statedir.ReadJSON(path, &last)
	if err != nil && !errors.Is(err, statedir.ErrDamaged) {
		return fmt.Errorf("read the last boot: %w", err)
	}
	if known && last.BootID == h.boot {
		return nil
	}
	if known && last.BootID != "" {
		if err := h.removeDamaged(); err != nil {
			return fmt.Errorf("remove damaged records: %w", err)
		}
	}
	if err := statedir.WriteJSON(path, &lastBoot{BootID: h.boot}, true); err != nil {
		return fmt.Errorf("record the boot: %w", err)
	}
	return nil
}

// removeDamaged removes the records of all UIDs whose record cannot be read. No process of these UIDs is alive.
func (h *Host) removeDamaged() error {
	uids, err := h.known()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if h.hasRecord(uid) {
			continue
		}
		for _, name := range []string{shim.RecordFile, shim.IdentityFile, shim.EndFile} {
			err = errors.Join(err, remove(filepath.Join(h.dir(uid), name)))
		}
	}
	return err
}

// hasRecord reports whether the record of a UID can be read, or the reason why it cannot is not damage.
func (h *Host) hasRecord(uid types.UID) bool {
	f := &observation{}
	path := filepath.Join(h.dir(uid), shim.RecordFile)
	present, err := f.readable(path, &f.record)
	return err != nil || f.valid(path, present, f.record.UID == string(uid) && f.record.Token != "" && f.record.Incarnation > 0)
}
