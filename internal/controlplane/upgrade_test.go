// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/berth-dev/berth/test/need"
)

// TestStart_ReadsDatabaseOfEtcd starts a control plane with a database that etcd and kube-apiserver have written as separate programs. All objects still exist.
func TestStart_ReadsDatabaseOfEtcd(t *testing.T) {
	root := filepath.Join("..", "..")
	need.Pods(t, root) // not Pods, but the programs
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())

	environment := &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join(root, "config", "crd", "bases")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 2 * time.Minute,
		BinaryAssetsDirectory:    need.Assets(root),
	}
	environment.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(dir.root, "etcd")}
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = environment.Stop() }() // stops what is left after an error
	api, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}}
	g.Expect(api.Create(ctx, kept)).To(Succeed())
	g.Expect(environment.Stop()).To(Succeed())

	progress := &progressLog{}
	c, err := Start(ctx, Options{StateDir: dir.root, Assets: assets(t), Progress: progress.add})
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	defer closeIdle(g, c)
	defer func() { g.Expect(c.Stop()).To(Succeed()) }()
	api, err = client.New(c.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	again := &corev1.ConfigMap{}
	g.Expect(api.Get(ctx, client.ObjectKeyFromObject(kept), again)).To(Succeed())
	g.Expect(again.UID).To(Equal(kept.UID))
	// The namespace controller lists every kind that the API serves, so one that cannot be listed would block the deletion of a namespace.
	expectNamespaceDeleted(ctx, g, api)
}
