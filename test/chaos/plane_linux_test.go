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
	"github.com/berth-dev/berth/internal/procstat"
)

// plane is a control plane that can be killed. Package controlplane restarts it.
type plane struct {
	dir          string
	controlPlane *controlplane.ControlPlane
	http         *http.Client
	config       *rest.Config
	// killed is the process that was killed most recently, or zero.
	killed procstat.Process

	mu     sync.Mutex
	output []string // output of the control plane
}

func startPlane(ctx context.Context, dir, assets string) (*plane, error) {
	p := &plane{dir: dir}
	whole, err := controlplane.Start(ctx, controlplane.Options{StateDir: dir, Assets: assets, ReadyTimeout: 5 * time.Minute, Progress: p.addOutput})
	if err != nil {
		return nil, err
	}
	p.controlPlane, p.config = whole, whole.Config()
	if p.http, err = rest.HTTPClientFor(p.config); err != nil {
		return nil, errors.Join(err, whole.Stop())
	}
	p.http.Timeout = 5 * time.Second
	return p, nil
}

func (p *plane) addOutput(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = append(p.output, line)
}

// log returns the messages of the control plane, such as restarts.
func (p *plane) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.output, "\n")
}

// find reads the process from its PID file.
func (p *plane) find() (procstat.Process, error) {
	var record struct {
		PID        int    `json:"pid"`
		StartTicks uint64 `json:"startTicks"`
	}
	data, err := os.ReadFile(filepath.Join(p.dir, "pids", "berth-apiserver.json"))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return procstat.Process{}, fmt.Errorf("find the control plane: %w", err)
	}
	return procstat.Process{PID: record.PID, Ticks: record.StartTicks}, nil
}

// kill kills the control plane with SIGKILL.
func (p *plane) kill() error {
	found, err := p.find()
	if err != nil {
		return err
	}
	p.killed = found
	return osProcess{Process: found}.kill(time.Minute)
}

// checkRestored returns an error if the killed control plane has not restarted yet or will not restart.
func (p *plane) checkRestored() error {
	select {
	case err := <-p.controlPlane.Failed():
		return fmt.Errorf("the control plane has stopped: %w", err)
	default:
	}
	found, err := p.find()
	if err == nil && found == p.killed {
		return errors.New("the control plane has not restarted")
	}
	return err
}

// checkReady returns an error if the API server is not ready.
func (p *plane) checkReady(ctx context.Context) error {
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

// waitUntilRestored waits until the control plane has restarted and is ready.
func (p *plane) waitUntilRestored(ctx context.Context) error {
	return eventually(ctx, patience, 50*time.Millisecond, func() error {
		if err := p.checkRestored(); err != nil {
			return err
		}
		return p.checkReady(ctx)
	})
}

func (p *plane) stop() error {
	p.http.CloseIdleConnections()
	return p.controlPlane.Stop()
}
