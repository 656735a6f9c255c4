// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// stopPart stops one process of a running cluster. It does nothing if the process is not running.
func (c *cluster) stopPart(ctx context.Context, part string) error {
	if err := c.knows(part); err != nil {
		return err
	}
	return c.end(ctx, part)
}

// killPart kills one process of a running cluster. It does nothing if the process is not running.
func (c *cluster) killPart(ctx context.Context, part string) error {
	if err := c.knows(part); err != nil {
		return err
	}
	return c.kill(ctx, part)
}

// startPart starts one process again with the same configuration and port. It does nothing if the process is running.
func (c *cluster) startPart(_ context.Context, part string) error {
	if err := c.knows(part); err != nil {
		return err
	}
	if id := c.recorded(part); id != nil && id.alive() {
		return nil
	}
	if part == "containerd" {
		return c.start(part, c.containerd()...)
	}
	data, err := os.ReadFile(c.path(portsFile))
	var used ports
	if err := errors.Join(err, json.Unmarshal(data, &used)); err != nil {
		return fmt.Errorf("read ports of the cluster: %w", err)
	}
	return c.start(part, c.argv(part, used)...)
}

// knows returns an error if a component does not exist or was never started in this cluster.
func (c *cluster) knows(part string) error {
	if !slices.Contains(parts, part) {
		return fmt.Errorf("unknown part %q; a cluster has %s", part, strings.Join(parts, ", "))
	}
	if c.recorded(part) == nil {
		return fmt.Errorf("%s was never started in %s (is the cluster up?)", part, c.dir)
	}
	return nil
}

func (c *cluster) containerd() []string {
	return []string{"containerd", "--config", c.path("containerd.toml")}
}
