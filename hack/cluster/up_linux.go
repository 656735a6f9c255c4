// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// debian maps a program to the Debian package that contains it.
var debian = map[string]string{"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2", "conntrack": "conntrack",
	"mount": "mount", "nft": "nftables", cniPlugins + "/bridge": "containernetworking-plugins", cniPlugins + "/host-local": "containernetworking-plugins"}

// devicePlugins is a socket of the kubelet whose path cannot be configured.
const devicePlugins = "/var/lib/kubelet/device-plugins/kubelet.sock"

// missing returns an error that names what this machine lacks to run a node, or nil.
func (c *cluster) missing() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: root is required", errUnavailable)
	}
	var packages []string
	for program, name := range debian {
		if _, err := exec.LookPath(program); err != nil && !strings.Contains(strings.Join(packages, " "), name) {
			packages = append(packages, name)
		}
	}
	if len(packages) > 0 {
		return fmt.Errorf("%w: packages are missing (on Debian: apt-get install --no-install-recommends %s)", errUnavailable, strings.Join(packages, " "))
	}
	if other, err := net.Dial("unix", devicePlugins); err == nil {
		_ = other.Close()
		return fmt.Errorf("%w: it is a node of another cluster; use that cluster with KUBECONFIG", errUnavailable)
	}
	for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "pause"} {
		if _, err := os.Stat(filepath.Join(c.assets, program)); err != nil {
			return fmt.Errorf("%s does not exist in %s; build it with `make cluster`", program, c.assets)
		}
	}
	return nil
}

// up creates the cluster. It first removes a cluster that is incomplete.
func (c *cluster) up(ctx context.Context) error {
	if api, err := c.api(); err == nil && c.allAlive() && api.nodeReady(ctx) == nil {
		say("the cluster is already up; its kubeconfig is %s", c.kubeconfigOf("admin"))
		return nil
	}
	if err := c.down(ctx); err != nil {
		return err
	}
	if err := c.missing(); err != nil {
		return err
	}
	if err := c.make(ctx); err != nil {
		said := c.lastWords()
		// The folder and its logs remain until the next up or down.
		return errors.Join(err, errors.New(said))
	}
	say("the cluster is up; use it with KUBECONFIG=%s, and delete it with `make cluster-down`", c.kubeconfigOf("admin"))
	return nil
}

func (c *cluster) make(ctx context.Context) error {
	began := time.Now()
	if err := os.MkdirAll(c.dir, 0o711); err != nil {
		return fmt.Errorf("create folder of the cluster: %w", err)
	}
	if err := c.keepSettings(); err != nil {
		return err
	}
	if err := addBridge(ctx); err != nil {
		return err
	}
	if err := allowForwarding(ctx); err != nil {
		return err
	}
	used, err := freePorts()
	if err != nil {
		return err
	}
	if err := errors.Join(c.writePKI(), c.writeFiles(used, newTokens()), c.addGroups()); err != nil {
		return err
	}
	say("starting containerd")
	if err := c.start("containerd", c.containerd()...); err != nil {
		return err
	}
	if err := until(ctx, c.images); err != nil {
		return err
	}
	if err := c.startKubernetes(ctx, used); err != nil {
		return err
	}
	say("the node is ready after %s", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// startKubernetes starts the components of Kubernetes and returns when Pods can run.
func (c *cluster) startKubernetes(ctx context.Context, used ports) error {
	say("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler")
	for _, part := range []string{"etcd", "kube-apiserver"} {
		if err := c.start(part, c.argv(part, used)...); err != nil {
			return err
		}
	}
	api, err := c.api()
	if err != nil {
		return err
	}
	if err := until(ctx, api.ready); err != nil {
		return err
	}
	for _, part := range []string{"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		if err := c.start(part, c.argv(part, used)...); err != nil {
			return err
		}
	}
	say("waiting for the node")
	if err := until(ctx, api.nodeReady); err != nil {
		return err
	}
	return until(ctx, serviceAnswers)
}

// serviceAnswers returns nil when the API server is reachable at the address of its Service, which Pods use.
func serviceAnswers(ctx context.Context) error {
	connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", serviceIP+":443")
	if err != nil {
		return fmt.Errorf("connect to the Service of the API server: %w", err)
	}
	return connection.Close()
}

// images imports the image that every Pod needs. It returns an error while containerd does not respond.
func (c *cluster) images(ctx context.Context) error {
	return c.image(ctx, pauseImage, []string{filepath.Join(c.assets, "pause")})
}

// firstPort and lastPort bound the ports of the components. These ports are below the range that the kernel uses for outgoing connections. Otherwise an
// outgoing connection could use the port of a component that is being restarted, and a client of that component could even connect to itself. The ports are
// also below those of `berth up`, of DevServers and of node ports.
const firstPort, lastPort = 10000, 10239

func freePorts() (ports, error) {
	var free []int
	refused := error(nil)
	for port := firstPort; port <= lastPort && len(free) < 6; port++ {
		listener, err := net.Listen("tcp", net.JoinHostPort(nodeIP, strconv.Itoa(port)))
		if err != nil {
			refused = err
			continue
		}
		_ = listener.Close()
		free = append(free, port)
	}
	if len(free) < 6 {
		return ports{}, fmt.Errorf("find free ports between %d and %d: %w", firstPort, lastPort, refused)
	}
	return ports{ETCD: free[0], Peer: free[1], API: free[2], Kubelet: free[3], Proxy: free[4], ProxyMetrics: free[5]}, nil
}

// until calls the function try every 200 ms, until try succeeds. After two minutes, or when the context is done, it returns the last error of try.
func until(ctx context.Context, try func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("timed out: %w", last)
	}
	return nil
}
