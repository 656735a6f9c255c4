// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
)

// argv returns the command line of a component of Kubernetes. It contains no secrets.
func (c *cluster) argv(part string, used ports) []string {
	certificate, key, ca := c.path("pki/node.crt"), c.path("pki/node.key"), c.path("pki/ca.crt")
	client, peer := fmt.Sprintf("https://%s:%d", nodeIP, used.ETCD), fmt.Sprintf("https://%s:%d", nodeIP, used.Peer)
	flags := map[string][]string{
		"etcd": {"--name=berth", "--data-dir=" + c.path("etcd"), "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=berth=" + peer,
			"--client-cert-auth", "--trusted-ca-file=" + ca, "--cert-file=" + certificate, "--key-file=" + key,
			"--peer-client-cert-auth", "--peer-trusted-ca-file=" + ca, "--peer-cert-file=" + certificate, "--peer-key-file=" + key,
			"--unsafe-no-fsync", "--log-level=warn"},
		"kube-apiserver": {"--bind-address=" + nodeIP, "--advertise-address=" + nodeIP, fmt.Sprintf("--secure-port=%d", used.API),
			"--cert-dir=" + c.path("pki"), "--tls-cert-file=" + certificate, "--tls-private-key-file=" + key,
			"--etcd-servers=" + client, "--etcd-cafile=" + ca, "--etcd-certfile=" + certificate, "--etcd-keyfile=" + key,
			"--token-auth-file=" + c.path("tokens.csv"), "--anonymous-auth=false", "--authorization-mode=Node,RBAC", "--allow-privileged",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.path("pki/service-accounts.key"),
			"--service-account-signing-key-file=" + c.path("pki/service-accounts.key"), "--service-cluster-ip-range=" + serviceNet,
			"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority=" + ca,
			"--kubelet-client-certificate=" + certificate, "--kubelet-client-key=" + key, "--profiling=false"},
		"kube-controller-manager": {"--kubeconfig=" + c.kubeconfigOf("system:kube-controller-manager"), "--leader-elect=false", "--secure-port=0",
			"--root-ca-file=" + ca, "--service-account-private-key-file=" + c.path("pki/service-accounts.key"),
			"--flex-volume-plugin-dir=" + c.path("kubelet/plugins-exec"), "--profiling=false",
			"--kube-api-qps=200", "--kube-api-burst=400"}, // deleting a namespace takes one request for each kind, and each test has its own namespace
		"kube-scheduler": {"--kubeconfig=" + c.kubeconfigOf("system:kube-scheduler"), "--leader-elect=false", "--secure-port=0", "--profiling=false"},
		"kubelet": {"--config=" + c.path("kubelet.json"), "--kubeconfig=" + c.kubeconfigOf("system:node:"+nodeName), "--root-dir=" + c.path("kubelet"),
			"--cert-dir=" + c.path("pki"), "--hostname-override=" + nodeName, "--node-ip=" + nodeIP},
		"kube-proxy": {"--config=" + c.path("kube-proxy.json")},
	}
	return append([]string{filepath.Join(c.assets, part)}, flags[part]...)
}
