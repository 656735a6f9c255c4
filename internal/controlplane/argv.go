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

// etcdQuota limits the database file of etcd, in bytes. etcd rejects writes beyond this limit. It is a variable so that a test can lower the limit.
var etcdQuota int64 = 512 << 20

// argv returns the command line of the child. The command line contains no secrets, because every user of the machine can read it.
func argv(assets string, dir layout, port int) []string {
	return []string{
		filepath.Join(assets, program),
		"--state-dir=" + dir.root,
		fmt.Sprintf("--port=%d", port),
		fmt.Sprintf("--etcd-quota-bytes=%d", etcdQuota),
	}
}

// fingerprint returns a hash of the command line and of the size and modification time of the binary. If a running child has the same fingerprint, this
// version of berth would start the child in the same way.
func fingerprint(argv []string) string {
	words := strings.Join(argv, "\x00")
	if info, err := os.Stat(argv[0]); err == nil {
		words += fmt.Sprintf("\x00%d %d", info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(words))
	return hex.EncodeToString(sum[:])
}
