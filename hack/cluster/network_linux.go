// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// addBridge creates the bridge to which the Pods are connected.
func addBridge(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + bridge); err == nil {
		return fmt.Errorf("network link %s already exists; set BERTH_CLUSTER to the folder of the cluster that uses it and run `make cluster-down`, or remove the link with `ip link delete %s`", bridge, bridge)
	}
	for _, args := range [][]string{
		{"link", "add", bridge, "type", "bridge"},
		{"address", "add", nodeIP + "/24", "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: ip %s: %w: %s", errUnavailable, strings.Join(args, " "), err, out)
		}
	}
	return nil
}

func removeBridge(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + bridge); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	out, err := exec.CommandContext(ctx, "ip", "link", "delete", bridge).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("Cannot find")) {
		return fmt.Errorf("remove bridge %s: %w: %s", bridge, err, out)
	}
	return nil
}

// forwardRules are the rules of iptables that accept the packets of Pods. Docker Engine sets the policy of the chain FORWARD to DROP, and keeps it when it
// stops. The rules are added even if the policy is ACCEPT, because Docker Engine may start later.
var forwardRules = [][]string{
	{"FORWARD", "-i", bridge, "-j", "ACCEPT"},
	{"FORWARD", "-o", bridge, "-j", "ACCEPT"},
}

// allowForwarding adds the forward rules. A machine without iptables has no Docker Engine and needs no rules.
func allowForwarding(ctx context.Context) error {
	if !hasIPTables() {
		return nil
	}
	for _, rule := range forwardRules {
		if out, err := iptables(ctx, "-I", rule); err != nil {
			return fmt.Errorf("%w: iptables -I %s: %w: %s", errUnavailable, strings.Join(rule, " "), err, out)
		}
	}
	return nil
}

// removeForwarding removes the forward rules, also those of an earlier cluster that was not deleted.
func removeForwarding(ctx context.Context) error {
	if !hasIPTables() {
		return nil
	}
	for _, rule := range forwardRules {
		for {
			if _, err := iptables(ctx, "-C", rule); err != nil {
				break // the rule does not exist
			}
			if out, err := iptables(ctx, "-D", rule); err != nil {
				return fmt.Errorf("iptables -D %s: %w: %s", strings.Join(rule, " "), err, out)
			}
		}
	}
	return nil
}

func hasIPTables() bool {
	_, err := exec.LookPath("iptables")
	return err == nil
}

func iptables(ctx context.Context, operation string, rule []string) ([]byte, error) {
	return exec.CommandContext(ctx, "iptables", slices.Concat([]string{"--wait", operation}, rule)...).CombinedOutput()
}
