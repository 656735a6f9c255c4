// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
)

// plane is a control plane whose parts can be killed separately. Package controlplane restarts the killed parts.
type plane struct {
	dir    string
	whole  *controlplane.ControlPlane
	http   *http.Client
	config *rest.Config
	// killed maps the name of each part that was killed at least once to the process that was killed most recently.
	killed map[string]shim.Process

	mu   sync.Mutex
	said []string // output of the control plane
}

func startPlane(ctx context.Context, dir, assets string) (*plane, error) {
	p := &plane{dir: dir, killed: map[string]shim.Process{}}
	whole, err := controlplane.Start(ctx, controlplane.Options{StateDir: dir, Assets: assets, ReadyTimeout: 5 * time.Minute, Progress: p.note})
	if err != nil {
		return nil, err
	}
	p.whole, p.config = whole, whole.Config()
	if p.http, err = rest.HTTPClientFor(p.config); err != nil {
		return nil, errors.Join(err, whole.Stop())
	}
	p.http.Timeout = 5 * time.Second
	return p, nil
}

func (p *plane) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, line)
}

// log returns the messages of the control plane, such as restarts.
func (p *plane) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.said, "\n")
}

// find reads the process of a part from its PID file.
func (p *plane) find(name string) (shim.Process, error) {
	var record struct {
		PID        int    `json:"pid"`
		StartTicks uint64 `json:"startTicks"`
	}
	data, err := os.ReadFile(filepath.Join(p.dir, "pids", name+".json"))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return shim.Process{}, fmt.Errorf("find %s: %w", name, err)
	}
	return shim.Process{PID: record.PID, Ticks: record.StartTicks}, nil
}

// kill kills a part with SIGKILL.
func (p *plane) kill(name string) error {
	found, err := p.find(name)
	if err != nil {
		return err
	}
	p.killed[name] = found
	return osProcess{Process: found}.kill(time.Minute)
}

// restored returns an error if a killed part has not restarted yet or if the whole control plane has stopped.
func (p *plane) restored() error {
	select {
	case err := <-p.whole.Failed():
		return fmt.Errorf("the control plane has stopped: %w", err)
	default:
	}
	for name, killed := range p.killed {
		found, err := p.find(name)
		if err != nil {
			return err
		}
		if found == killed {
			return fmt.Errorf("%s has not restarted", name)
		}
	}
	return nil
}

// ready returns an error if the API server is not ready.
func (p *plane) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server returned %s", response.Status)
	}
	return nil
}

// recover waits until all parts have restarted and the API server is ready.
func (p *plane) recover(ctx context.Context) error {
	return eventually(ctx, patience, 50*time.Millisecond, func() error {
		if err := p.restored(); err != nil {
			return err
		}
		return p.ready(ctx)
	})
}

func (p *plane) stop() error {
	p.http.CloseIdleConnections()
	return p.whole.Stop()
}
