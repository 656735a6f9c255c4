// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	nodeName = "berth"
	bridge   = "berth0"
	// The address of the node is on the bridge, so that Pods can also reach the API server.
	nodeIP       = "10.213.0.1"
	podNet       = "10.213.0.0/24"
	serviceNet   = "10.214.0.0/24"
	serviceIP    = "10.214.0.1" // address of the API server: the first of serviceNet
	network      = "berth-cluster"
	pauseImage   = "localhost/berth/pause:test"
	cniPlugins   = "/usr/lib/cni"
	containerdV2 = `version = 2
root = %q
state = %q

[grpc]
  address = %q

[plugins."io.containerd.internal.v1.opt"]
  path = %q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = %q

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = %q
`
)

// portsFile stores the ports, so that a restarted component uses the same ports again.
const portsFile = "ports.json"

// ports are the ports of the processes of the cluster, chosen when the cluster is created.
type ports struct {
	ETCD, Peer, API, Kubelet, Proxy, ProxyMetrics int
}

// writeFiles writes the configuration files of the processes of the cluster.
func (c *cluster) writeFiles(used ports, tokens map[string]string) error {
	for _, dir := range []string{"cni", "kubelet", "kubelet/plugins-exec", "logs", "pki"} {
		if err := os.MkdirAll(c.path(dir), 0o700); err != nil {
			return fmt.Errorf("create folder: %w", err)
		}
	}
	var access strings.Builder
	for user, groups := range users {
		fmt.Fprintf(&access, "%s,%s,%s,%q\n", tokens[user], user, user, groups)
		if err := c.writeKubeconfig(user, used.API, tokens[user]); err != nil {
			return err
		}
	}
	cni := map[string]any{"cniVersion": "0.4.0", "name": network, "plugins": []any{
		map[string]any{"type": "bridge", "bridge": bridge, "isGateway": true, "hairpinMode": true,
			"ipam": map[string]any{"type": "host-local", "ranges": [][]any{{map[string]any{"subnet": podNet, "gateway": nodeIP}}},
				"dataDir": c.path("addresses"), "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}},
	}}
	for name, content := range map[string]any{
		"tokens.csv":            access.String(),
		"cni/10-berth.conflist": cni,
		portsFile:               used,
		"kubelet.json":          c.kubeletConfig(used),
		"kube-proxy.json":       c.proxyConfig(used),
		"containerd.toml": fmt.Sprintf(containerdV2, c.path("containerd"), c.path("run"), c.socket(), c.path("opt"), pauseImage, cniPlugins,
			c.path("cni"), c.path("runc")),
	} {
		if err := writeFile(c.path(name), content); err != nil {
			return err
		}
	}
	return nil
}

// users are the users of the API server with their groups. admin is the user of the kubeconfig.
var users = map[string]string{
	"admin":                          "system:masters",
	"system:kube-controller-manager": "system:masters", // it signs tokens and acts for every controller
	"system:kube-scheduler":          "",
	"system:kube-proxy":              "",
	"system:node:" + nodeName:        "system:nodes",
}

// kubeconfigOf returns the path of a user's kubeconfig. The kubeconfig of the administrator has the name that users expect.
func (c *cluster) kubeconfigOf(user string) string {
	if user == "admin" {
		return c.path("kubeconfig")
	}
	return c.path("pki", strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

func (c *cluster) writeKubeconfig(user string, port int, token string) error {
	named := func(key string, value any) []any { return []any{map[string]any{"name": "berth", key: value}} }
	return writeFile(c.kubeconfigOf(user), map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "berth",
		"clusters": named("cluster", map[string]any{"server": fmt.Sprintf("https://%s:%d", nodeIP, port), "certificate-authority": c.path("pki/ca.crt")}),
		"users":    named("user", map[string]any{"token": token}),
		"contexts": named("context", map[string]any{"cluster": "berth", "user": "berth"}),
	})
}

func (c *cluster) kubeletConfig(used ports) any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": nodeIP, "port": used.Kubelet, "healthzPort": 0,
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false},
			"x509": map[string]any{"clientCAFile": c.path("pki/ca.crt")}},
		"authorization": map[string]any{"mode": "AlwaysAllow"}, // for clients with a certificate of this cluster
		"tlsCertFile":   c.path("pki/node.crt"), "tlsPrivateKeyFile": c.path("pki/node.key"),
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/" + c.group(), "failCgroupV1": false, "failSwapOn": false,
		"enforceNodeAllocatable": []string{}, "localStorageCapacityIsolation": false, "evictionHard": map[string]string{},
		"imageGCHighThresholdPercent": 100, "resolvConf": "", "makeIPTablesUtilChains": false,
		"containerRuntimeEndpoint": "unix://" + c.socket(), "podLogsDir": c.path("pods"), "volumePluginDir": c.path("kubelet/plugins-exec"),
	}
}

// proxyConfig returns a configuration that does not change kernel settings. Pods on the same bridge send responses to each other directly, so the node cannot
// translate the responses of a Service. Therefore traffic to a Service is masqueraded, so that it appears to come from the node.
func (c *cluster) proxyConfig(used ports) any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "nftables", "nftables": map[string]any{"masqueradeAll": true},
		"hostnameOverride": nodeName, "bindAddress": nodeIP,
		"clientConnection":   map[string]any{"kubeconfig": c.kubeconfigOf("system:kube-proxy")},
		"healthzBindAddress": fmt.Sprintf("%s:%d", nodeIP, used.Proxy), "metricsBindAddress": fmt.Sprintf("%s:%d", nodeIP, used.ProxyMetrics),
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
}

// writeFile writes a string unchanged and any other value as JSON, which is also YAML. Only the owner can read the file, because some files contain secrets.
func writeFile(path string, content any) error {
	text, plain := content.(string)
	if !plain {
		data, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		text = string(data)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o600)
}
