// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"fmt"
)

func (c *cluster) up(context.Context) error {
	return fmt.Errorf("%w: a node needs Linux; use your own cluster with KUBECONFIG", errUnavailable)
}

func (c *cluster) stopPart(context.Context, string) error { return errUnavailable }

func (c *cluster) killPart(context.Context, string) error { return errUnavailable }

func (c *cluster) startPart(context.Context, string) error { return errUnavailable }

func (c *cluster) lastWords() string { return "" }

func (c *cluster) down(context.Context) error { return nil }
