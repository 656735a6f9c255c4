// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
)

func TestOpenAndDown_RefuseForeignFolder(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("BERTH_CLUSTER", "/")
	_, err := open()
	g.Expect(err).To(MatchError(ContainSubstring("BERTH_CLUSTER")))
	t.Setenv("BERTH_CLUSTER", t.TempDir())
	c, err := open()
	if err == nil { // open rejects a long temporary folder, because the paths of the sockets in it would be too long
		g.Expect(c.down(t.Context())).NotTo(Succeed(), "a folder that is not of a cluster is not removed")
		g.Expect(c.dir).To(BeADirectory())
	}
}

func TestParts_RefuseUnknownNamesAndForeignProcesses(t *testing.T) {
	g := NewWithT(t)
	c := &cluster{dir: t.TempDir()}
	g.Expect(c.startPart(t.Context(), "kubelets")).To(MatchError(ContainSubstring("kube-apiserver")))
	g.Expect(c.startPart(t.Context(), "kubelet")).To(MatchError(ContainSubstring("is the cluster up?")))
	g.Expect(c.stopPart(t.Context(), "kubelet")).NotTo(Succeed())
	g.Expect(os.MkdirAll(c.path("logs"), 0o700)).To(Succeed())
	// The process of this test plays the part of a running kubelet.
	self, err := identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(writeFile(c.path("logs", "kubelet.pid"), self)).To(Succeed())
	g.Expect(c.startPart(t.Context(), "kubelet")).To(Succeed(), "a running process is not started again")
	self.Ticks--
	g.Expect(writeFile(c.path("logs", "kubelet.pid"), self)).To(Succeed())
	g.Expect(c.stopPart(t.Context(), "kubelet")).To(Succeed(), "another process with the same PID is not stopped")
	g.Expect(c.killPart(t.Context(), "kubelet")).To(Succeed(), "or killed")
	g.Expect(c.startPart(t.Context(), "kubelet")).To(MatchError(ContainSubstring("ports")))
}
