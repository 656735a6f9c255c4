// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// serve creates or corrects the Service of a server in a Pod, at the port of the server. If the Service cannot exist, serve returns the reason.
func (k *Kind) serve(ctx context.Context, dev *v1alpha1.DevServer) (*lifecycle.Blocked, error) {
	services := podspec.Services{Client: k.client, Reader: k.reader}
	return services.Serve(ctx, dev, "DevServer", podspec.Service(dev, "DevServer", serviceName(dev), "dev", dev.Status.Port))
}

// serviceName returns the name of the DevServer if a Service can have it, otherwise one derived from it.
func serviceName(dev *v1alpha1.DevServer) string { return podspec.ServiceName("dev", dev.Name, dev) }

// serviceHost returns the host name of the Service within the cluster.
func serviceHost(dev *v1alpha1.DevServer) string {
	return serviceName(dev) + "." + dev.Namespace + ".svc"
}
