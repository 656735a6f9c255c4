// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/statedir"
)

// nameFile is the file in the state directory that stores the name of the host. The records of the processes are in the same directory, so the name and the
// records are always lost or copied together: a host without these records does not know which processes it started.
const nameFile = "host.json"

// machineFile identifies the installation of the operating system. A container may lack this file.
const machineFile = "/etc/machine-id"

// identity is the content of nameFile.
type identity struct {
	// Name is the value of the label berth.dev/host.
	Name string `json:"name"`
	// Machine is a hash of the machine ID. If the state directory was copied to another machine, the hash differs there, and Name chooses a new name.
	Machine string `json:"machine,omitempty"`
}

// Name returns the name of the host that this machine and the state directory form. The first call chooses the name and writes it to the directory; later
// calls return the same name, even after a reboot or a change of the machine's host name.
func Name(stateDir string) (string, error) {
	return nameOf(stateDir, machine())
}

func nameOf(stateDir, machine string) (string, error) {
	path := filepath.Join(stateDir, nameFile)
	var known identity
	switch data, err := os.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", fmt.Errorf("read the name of this host: %w", err)
	case json.Unmarshal(data, &known) != nil || known.Name == "":
		return "", fmt.Errorf("cannot read the name of this host from %s; restore the file, because the label berth.dev/host of the objects of this host contains that name", path)
	case known.Machine == machine:
		return known.Name, nil
	}
	return choose(path, machine)
}

// choose writes a new name: the host name, which is readable, and random digits, which make it unique.
func choose(path, machine string) (string, error) {
	var digits [4]byte
	_, _ = rand.Read(digits[:]) // never fails
	hostname, _ := os.Hostname()
	chosen := identity{Name: label(hostname) + "-" + hex.EncodeToString(digits[:]), Machine: machine}
	data, err := json.Marshal(chosen)
	if err != nil {
		return "", fmt.Errorf("record the name of this host: %w", err)
	}
	if err := statedir.Write(path, data); err != nil {
		return "", fmt.Errorf("record the name of this host: %w", err)
	}
	return chosen.Name, nil
}

// longestHostname is the maximum length of the host name in characters. It leaves room for the prefix of the Lease and the digits within the 63
// characters of a label.
const longestHostname = 32

// label returns the host name reduced to the characters that are valid in a label value and in the name of a Lease.
func label(hostname string) string {
	hostname, _, _ = strings.Cut(hostname, ".")
	return cmp.Or(printable.Name(hostname, longestHostname), "host")
}

func machine() string {
	id, err := os.ReadFile(machineFile)
	if err != nil || len(strings.TrimSpace(string(id))) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte("berth:" + strings.TrimSpace(string(id)))) // machine-id(5): the ID itself must not be exposed
	return hex.EncodeToString(sum[:8])
}

// Known returns the name that Name chose for a state directory. It returns an error if no manager has used the directory yet.
func Known(stateDir string) (string, error) {
	path := filepath.Join(stateDir, nameFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no manager has used the state directory %s on this machine yet, so it has no host name: start berth there first, or name another host or directory", stateDir)
	}
	return Name(stateDir)
}
