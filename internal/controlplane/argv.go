// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// argv returns the command line of a child. The command line contains no secrets, because every user of the machine can read it.
func argv(name, assets string, dir layout, used ports) []string {
	program := filepath.Join(assets, name)
	switch name {
	case nameEtcd:
		return append([]string{program}, etcdFlags(dir, used)...)
	case nameAPIServer:
		return append([]string{program}, apiServerFlags(dir, used)...)
	default:
		return append([]string{program}, controllerManagerFlags(dir)...)
	}
}

// etcdFlags returns the flags of etcd. etcd requires a client certificate of the control plane's authority, because listening on loopback alone would give
// access to every user of the machine.
func etcdFlags(dir layout, used ports) []string {
	client := fmt.Sprintf("https://127.0.0.1:%d", used.EtcdClient)
	peer := fmt.Sprintf("https://127.0.0.1:%d", used.EtcdPeer)
	return []string{
		"--name=berth",
		"--data-dir=" + dir.etcd(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=berth=" + peer,
		"--client-cert-auth",
		"--trusted-ca-file=" + dir.pki(fileCA),
		"--cert-file=" + dir.pki(fileEtcdCert),
		"--key-file=" + dir.pki(fileEtcdKey),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + dir.pki(fileCA),
		"--peer-cert-file=" + dir.pki(fileEtcdCert),
		"--peer-key-file=" + dir.pki(fileEtcdKey),
		// Without these flags, every version of every object stays in the database.
		"--auto-compaction-mode=periodic",
		"--auto-compaction-retention=2m",
		fmt.Sprintf("--quota-backend-bytes=%d", etcdQuota),
		// By default etcd keeps 5000 changes in memory and 10000 in the write-ahead log for other members, which this etcd does not have. With large objects
		// these changes take gigabytes.
		"--snapshot-count=1000",
		"--snapshot-catchup-entries=100",
		"--log-level=warn",
	}
}

func apiServerFlags(dir layout, used ports) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", used.APIServer),
		"--endpoint-reconciler-type=none", // a loopback address is not a valid endpoint of a Service
		"--cert-dir=" + filepath.Dir(dir.pki(fileServerCert)),
		"--tls-cert-file=" + dir.pki(fileServerCert),
		"--tls-private-key-file=" + dir.pki(fileServerKey),
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", used.EtcdClient),
		"--etcd-cafile=" + dir.pki(fileCA),
		"--etcd-certfile=" + dir.pki(fileEtcdClientCert),
		"--etcd-keyfile=" + dir.pki(fileEtcdClientKey),
		"--token-auth-file=" + dir.pki(fileTokens),
		"--anonymous-auth=false",
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + dir.pki(fileServiceAccount),
		"--service-account-signing-key-file=" + dir.pki(fileServiceAccount),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--profiling=false",
	}
}

// controllerManagerFlags returns the flags of the controller manager. With them it runs only the controllers that finish the deletion of namespaces, collect
// garbage, count quotas and aggregate roles, and it serves no port.
func controllerManagerFlags(dir layout) []string {
	return []string{
		"--kubeconfig=" + dir.managerAccess(),
		"--controllers=namespace-controller,garbage-collector-controller,resourcequota-controller,clusterrole-aggregation-controller",
		"--leader-elect=false",
		"--secure-port=0",
		"--profiling=false",
	}
}

// fingerprint returns a hash of the command line and of the size and modification time of the binary. If the fingerprint of a running child is equal, this
// version would start the child in the same way.
func fingerprint(argv []string) string {
	words := strings.Join(argv, "\x00")
	if info, err := os.Stat(argv[0]); err == nil {
		words += fmt.Sprintf("\x00%d %d", info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(words))
	return hex.EncodeToString(sum[:])
}
