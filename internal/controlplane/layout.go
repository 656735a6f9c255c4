// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"github.com/berth-dev/berth/internal/statedir"
)

// layout contains the paths within a state directory.
type layout struct{ root string }

func (l layout) pki(name string) string    { return filepath.Join(l.root, "pki", name) }
func (l layout) log(name string) string    { return filepath.Join(l.root, "logs", name+".log") }
func (l layout) oldLog(name string) string { return l.log(name) + ".old" }
func (l layout) pid(name string) string    { return filepath.Join(l.root, "pids", name+".json") }
func (l layout) etcd() string              { return filepath.Join(l.root, "etcd") }
func (l layout) ports() string             { return filepath.Join(l.root, "ports.json") }
func (l layout) managerAccess() string     { return l.pki(nameControllerManager + ".kubeconfig") }
func (l layout) defaultAccess() string     { return filepath.Join(l.root, "kubeconfig") }

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

// lock prevents a second process from using the same state directory. The kernel releases the lock when its owner exits.
type lock struct{ file *flock.Flock }

func takeLock(root string) (*lock, error) {
	path := filepath.Join(root, "lock")
	file := flock.New(path, flock.SetPermissions(0o600))
	ok, err := file.TryLock()
	if err != nil {
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
	return &lock{file}, nil
}

func (l *lock) release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release the state directory: %w", err)
	}
	return nil
}

// ports are the ports on which the children listen, all on 127.0.0.1. A later start uses the same ports again if they are free.
type ports struct {
	APIServer  int `json:"apiServer"`
	EtcdClient int `json:"etcdClient"`
	EtcdPeer   int `json:"etcdPeer"`
}

func loadPorts(dir layout) (ports, error) {
	var used ports
	data, err := os.ReadFile(dir.ports())
	if errors.Is(err, fs.ErrNotExist) {
		return used, nil
	}
	if err != nil {
		return used, fmt.Errorf("read the ports: %w", err)
	}
	if err := json.Unmarshal(data, &used); err != nil {
		// The file only records preferred ports, so a damaged file is ignored and rewritten.
		return ports{}, nil //nolint:nilerr // see above
	}
	return used, nil
}

// choosePorts keeps the ports that are free and replaces the others, so that the kubeconfigs of earlier runs remain valid.
func choosePorts(dir layout, used ports) (ports, error) {
	var open []net.Listener
	defer func() {
		for _, listener := range open {
			_ = listener.Close()
		}
	}()
	for _, port := range []*int{&used.APIServer, &used.EtcdClient, &used.EtcdPeer} {
		// The listeners stay open until all ports are chosen, so that no port is chosen twice.
		listener, err := listenNear(*port)
		if err != nil {
			return ports{}, fmt.Errorf("find a free port: %w", err)
		}
		open = append(open, listener)
		*port = listener.Addr().(*net.TCPAddr).Port
	}
	data, err := json.Marshal(used)
	if err != nil {
		return ports{}, fmt.Errorf("write the ports: %w", err)
	}
	return used, statedir.Write(dir.ports(), data)
}

// The ports are below the range that systems use for outgoing connections, so that a port that is free at one start is likely to be free at the next.
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
