// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	recordFile   = "record.json"
	logFile      = "log"
	progressFile = "log.json"
)

// record is the state of the newest incarnation of a UID that the engine does not store. It contains no secret.
type record struct {
	UID         types.UID `json:"uid"`
	Name        string    `json:"name"`
	Incarnation int64     `json:"incarnation"`
	// Container is the ID of the container; empty if none was created yet.
	Container string `json:"container,omitempty"`
	// Adopted is true if another program created the container. Berth does not remove it.
	Adopted bool `json:"adopted,omitempty"`
	// ContainerName is the name of the container.
	ContainerName string `json:"containerName,omitempty"`
	// Before is the time at which an adopted container was last started before this incarnation. While the engine reports the same time, this incarnation has not
	// been started.
	Before string `json:"before,omitempty"`
	// Started is true if the container has run as this incarnation. If such a container no longer exists, another program has removed it.
	Started   bool      `json:"started,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Size is the size that Berth has last set for the terminal; zero if it has set none. The engine does not report it.
	Size runtime.Terminal `json:"size,omitzero"`

	// Origin identifies the spec from which this incarnation was started.
	Origin     facts.Origin      `json:"origin,omitzero"`
	StopSignal string            `json:"stopSignal,omitempty"`
	StopSent   bool              `json:"stopSent,omitempty"`
	KillSent   bool              `json:"killSent,omitempty"`
	Failed     *facts.StartError `json:"failed,omitempty"`
	// GoneAt is when the container was found to be missing.
	GoneAt time.Time `json:"goneAt,omitzero"`
}

// failed reports whether the start failed.
func (d *record) failed() bool { return d.Failed != nil }

// save writes the record of an entry, and remembers the owner of an adopted container.
func (r *Runtime) save(e *entry) error {
	if err := os.MkdirAll(r.dir(e.uid), 0o700); err != nil {
		return fmt.Errorf("record %s: %w", e.uid, err)
	}
	if err := statedir.WriteJSON(filepath.Join(r.dir(e.uid), recordFile), &e.record, false); err != nil {
		return fmt.Errorf("record %s: %w", e.uid, err)
	}
	if e.record.Adopted {
		r.mu.Lock()
		r.adopted[e.record.Container] = e.uid
		r.mu.Unlock()
	}
	return nil
}

// readRecords reads the records of the previous manager. It returns an error if a record is damaged, because no other place stores who owns an adopted
// container.
func (r *Runtime) readRecords() error {
	found, err := os.ReadDir(filepath.Join(r.options.Dir, "run"))
	if err != nil {
		return fmt.Errorf("read the records of containers: %w", err)
	}
	for _, dir := range found {
		uid := types.UID(dir.Name())
		if !runtime.ValidUID(uid) {
			continue
		}
		e := r.entries.Get(uid)
		if _, err := statedir.ReadJSON(filepath.Join(r.dir(uid), recordFile), &e.record); err != nil {
			return fmt.Errorf("read the record of a container: %w; move the file away to continue without it", err)
		}
		if e.record.Adopted {
			r.adopted[e.record.Container] = uid
		}
	}
	return nil
}

// drop removes the record of a UID and its output.
func (r *Runtime) drop(e *entry) error {
	r.stopCopier(e)
	if err := os.RemoveAll(r.dir(e.uid)); err != nil {
		return fmt.Errorf("forget %s: %w", e.uid, err)
	}
	r.mu.Lock()
	if r.adopted[e.record.Container] == e.uid {
		delete(r.adopted, e.record.Container)
	}
	r.mu.Unlock()
	e.record = record{}
	return nil
}
