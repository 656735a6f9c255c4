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
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
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

var planeParts = []string{etcd, apiServer, controllerManager}

// plane is a control plane whose parts can be killed one by one. Each is then started again just as internal/controlplane had started it.
type plane struct {
	dir    string
	whole  *controlplane.ControlPlane
	http   *http.Client
	config *rest.Config

	mu    sync.Mutex
	parts map[string]*part
	// revived counts the parts that had ended by themselves and were started again.
	revived map[string]int
}

type part struct {
	osProcess
	cmd  *exec.Cmd     // nil for one that internal/controlplane has started
	done chan struct{} // closed when cmd has been waited for
}

func startPlane(ctx context.Context, dir, assets string) (*plane, error) {
	whole, err := controlplane.Start(ctx, controlplane.Options{StateDir: dir, Assets: assets, ReadyTimeout: 5 * time.Minute})
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, whole: whole, config: whole.Config(), parts: map[string]*part{}, revived: map[string]int{}}
	if p.http, err = rest.HTTPClientFor(p.config); err == nil {
		p.http.Timeout = 5 * time.Second
		err = p.find()
	}
	if err != nil {
		return nil, errors.Join(err, whole.Stop())
	}
	return p, nil
}

// find reads who the parts are.
func (p *plane) find() error {
	for _, name := range planeParts {
		var record struct {
			PID        int    `json:"pid"`
			StartTicks uint64 `json:"startTicks"`
		}
		data, err := os.ReadFile(filepath.Join(p.dir, "pids", name+".json"))
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", record.PID))
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		found, err := describe(record.PID, exe)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if found.Ticks != record.StartTicks {
			return fmt.Errorf("find %s: process %d is another one", name, record.PID)
		}
		p.parts[name] = &part{osProcess: found}
	}
	return nil
}

// kill ends a part with SIGKILL.
func (p *plane) kill(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts[name].end()
}

func (p *part) end() error {
	err := p.kill(time.Minute)
	if p.done != nil && err == nil {
		<-p.done
	}
	return err
}

// restore starts what does not run.
func (p *plane) restore(killed ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range planeParts {
		old := p.parts[name]
		if fd, err := shim.Open(old.Process); err == nil {
			ended, _ := shim.Ended(fd)
			_ = syscall.Close(fd)
			if !ended {
				continue
			}
		} else if !errors.Is(err, shim.ErrGone) {
			return err
		}
		expected := false
		for _, k := range killed {
			expected = expected || k == name
		}
		if !expected {
			p.revived[name]++
		}
		started, err := p.run(name, old)
		if err != nil {
			return fmt.Errorf("start %s again: %w", name, err)
		}
		p.parts[name] = started
	}
	return nil
}

func (p *plane) run(name string, old *part) (*part, error) {
	log, err := os.OpenFile(filepath.Join(p.dir, "logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(old.exe, old.args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// It is our child and has not been waited for, so the PID is its own.
	id, err := shim.Identify(cmd.Process.Pid)
	started := &part{osProcess: osProcess{Process: id, exe: old.exe, args: old.args}, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(started.done)
	}()
	if err != nil {
		_ = cmd.Process.Kill()
		<-started.done
		return nil, err
	}
	return started, nil
}

// ready says whether the API server answers that it is ready.
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
		return fmt.Errorf("the API server says %s", response.Status)
	}
	return nil
}

// recover starts what does not run and waits until the API answers.
func (p *plane) recover(ctx context.Context, killed ...string) error {
	return eventually(ctx, patience, 50*time.Millisecond, func() error {
		if err := p.restore(killed...); err != nil {
			return err
		}
		killed = nil
		return p.ready(ctx)
	})
}

// stop ends everything, the parts that we have started first.
func (p *plane) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.http.CloseIdleConnections()
	var errs []error
	for i := len(planeParts) - 1; i >= 0; i-- {
		if part := p.parts[planeParts[i]]; part.cmd != nil {
			errs = append(errs, part.end())
		}
	}
	return errors.Join(append(errs, p.whole.Stop())...)
}
