// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/berth-dev/berth/internal/statedir"
)

// layout contains the paths within a state directory.
type layout struct{ root string }

func (l layout) pki(name string) string    { return filepath.Join(l.root, "pki", name) }
func (l layout) log(name string) string    { return filepath.Join(l.root, "logs", name+".log") }
func (l layout) oldLog(name string) string { return l.log(name) + ".old" }
func (l layout) pid(name string) string    { return filepath.Join(l.root, "pids", name+".json") }
func (l layout) lock() string              { return filepath.Join(l.root, "lock") }
func (l layout) ports() string             { return filepath.Join(l.root, "ports.json") }
func (l layout) defaultAccess() string     { return filepath.Join(l.root, "kubeconfig") }

// manager is the name of the log of the manager.
const manager = "manager"

// ManagerLogPath returns the path of the log of the manager that runs beside the control plane. The control plane limits the size of this file, which must
// be opened for appending.
func ManagerLogPath(stateDir string) string { return layout{stateDir}.log(manager) }

// KubeconfigPath returns the path of the kubeconfig of the control plane with this state directory.
func KubeconfigPath(stateDir string) string { return layout{stateDir}.defaultAccess() }

func makeLayout(root string) (layout, error) {
	root, err := statedir.Make(root)
	if err != nil {
		return layout{}, err
	}
	for _, name := range []string{"pki", "logs", "pids", "etcd"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o700); err != nil {
			return layout{}, fmt.Errorf("create the state directory: %w", err)
		}
	}
	return layout{root}, nil
}

// lockPatience is how long takeLock waits for the lock.
const lockPatience = 500 * time.Millisecond

// takeLock locks a state directory, so that no second process uses it. The kernel releases the lock when its owner exits.
func takeLock(root string) (*flock.Flock, error) {
	path := layout{root}.lock()
	file := flock.New(path, flock.SetPermissions(0o600))
	// Wait for a moment, because other commands take the lock briefly to find out whether it is held.
	waiting, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	ok, err := file.TryLockContext(waiting, 20*time.Millisecond)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !ok {
		owner, _ := os.ReadFile(path)
		who := "another berth"
		if pid, err := strconv.Atoi(strings.TrimSpace(string(owner))); err == nil {
			who = fmt.Sprintf("another berth (process %d)", pid)
		}
		return nil, fmt.Errorf("%s uses the state directory %s: use that control plane, stop it, or choose another directory with --state-dir", who, root)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), file.Unlock())
	}
	return file, nil
}

func releaseLock(file *flock.Flock) error {
	if err := file.Close(); err != nil {
		return fmt.Errorf("release the state directory: %w", err)
	}
	return nil
}

// portFile is the content of the file that records the port of the API on 127.0.0.1. A later start uses the same port again if it is free.
type portFile struct {
	APIServer int `json:"apiServer"`
}

// loadPort returns the port of the previous start, or 0 if it is not known.
func loadPort(dir layout) (int, error) {
	var used portFile
	// The file only records a preferred port, so a damaged file is ignored and rewritten.
	if _, err := statedir.ReadJSON(dir.ports(), &used); err != nil && !errors.Is(err, statedir.ErrDamaged) {
		return 0, fmt.Errorf("read the port: %w", err)
	}
	return used.APIServer, nil
}

// choosePort keeps the port if it is free and otherwise chooses another one, so that the kubeconfigs of earlier runs remain valid if possible.
func choosePort(dir layout, used int) (int, error) {
	listener, err := listenNear(used)
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	data, err := json.Marshal(portFile{port})
	if err != nil {
		return 0, fmt.Errorf("write the port: %w", err)
	}
	return port, statedir.Write(dir.ports(), data)
}

// Ports in this range are below those that systems use for outgoing connections, so the port of the API is likely to be free at the next start too.
const lowestPort, highestPort = 10240, 19999

func listenNear(wanted int) (net.Listener, error) {
	for try := range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if try == 0 && wanted > 0 {
			port = wanted
		}
		if listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return listener, nil
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

// howToGet is the advice for a user who does not have the program.
const howToGet = "install it with `go install github.com/berth-dev/berth/cmd/berth-apiserver@latest`, or set its directory with --assets"

// findAssets returns the folder that contains berth-apiserver. It is the given folder or, if none is given, the first folder that contains the program among
// KUBEBUILDER_ASSETS, the folder of this executable, and the folders in PATH. findAssets never searches relative to the working directory, where another user may
// have placed a program with this name. The error explains how to get the program.
func findAssets(given string) (string, error) {
	if given != "" {
		if !hasProgram(given) {
			return "", fmt.Errorf("%s does not contain %s: %s", given, program, howToGet)
		}
		return filepath.Abs(given)
	}
	searched := searchedForAssets()
	for _, dir := range searched {
		if hasProgram(dir) {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("%s was not found (searched %s): %s", program, strings.Join(searched, ", "), howToGet)
}

func searchedForAssets() []string {
	var dirs []string
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		dirs = append(dirs, dir)
	}
	if executable, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(executable); err == nil {
			executable = resolved
		}
		dirs = append(dirs, filepath.Dir(executable))
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func hasProgram(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, program))
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}
