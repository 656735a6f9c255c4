// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/berth-dev/berth/internal/statedir"
)

// Memory is a file with the questions that a notifier has sent, so that it does not send them again after a restart.
type Memory struct {
	path string
	lock *flock.Flock
}

// ErrInUse is the error of OpenMemory if another notifier uses the same file.
var ErrInUse = errors.New("a notifier with the same objects and channels is already running")

// OpenMemory opens the file in a state directory, which it creates, for a notifier that purpose describes: its objects and channels. It returns ErrInUse if a
// notifier for the same purpose runs.
func OpenMemory(dir string, purpose ...string) (*Memory, error) {
	dir, err := statedir.Make(dir)
	if err != nil {
		return nil, err
	}
	name := sha256.Sum256([]byte(strings.Join(purpose, "\n")))
	path := filepath.Join(dir, "notify-"+hex.EncodeToString(name[:8])+".json")
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	switch held, err := lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	case !held:
		return nil, ErrInUse
	}
	return &Memory{path: path, lock: lock}, nil
}

// Close permits another notifier to use the file.
func (m *Memory) Close() error { return m.lock.Close() }

func (m *Memory) load() (ids []string, err error) {
	_, err = statedir.ReadJSON(m.path, &ids)
	return ids, err
}

func (m *Memory) save(ids []string) error {
	data, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	return statedir.Write(m.path, data)
}
