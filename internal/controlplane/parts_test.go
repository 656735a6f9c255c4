// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
)

// closeIdle closes the connections that client-go keeps for each configuration.
func closeIdle(g Gomega, planes ...*ControlPlane) {
	for _, plane := range planes {
		transport, err := rest.TransportFor(plane.Config())
		g.Expect(err).NotTo(HaveOccurred())
		if closer, ok := transport.(interface{ CloseIdleConnections() }); ok {
			closer.CloseIdleConnections()
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
}

func TestFindAssets(t *testing.T) {
	whole, part, cwd := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range names {
		NewWithT(t).Expect(os.WriteFile(filepath.Join(whole, name), nil, 0o755)).To(Succeed())
		for _, dir := range []string{cwd, filepath.Join(cwd, "bin")} {
			NewWithT(t).Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
			NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, name), nil, 0o755)).To(Succeed())
		}
	}
	NewWithT(t).Expect(os.WriteFile(filepath.Join(part, nameEtcd), nil, 0o755)).To(Succeed())
	for name, test := range map[string]struct{ given, env, path, want, wantErr string }{
		"given":                  {given: whole, want: whole},
		"given and incomplete":   {given: part, env: whole, wantErr: "kube-apiserver, kube-controller-manager: build the control plane with `make controlplane`"},
		"environment":            {env: whole, want: whole},
		"PATH":                   {env: part, path: part + string(os.PathListSeparator) + whole, want: whole},
		"working directory":      {wantErr: "make controlplane"},
		"relative entry of PATH": {path: "bin" + string(os.PathListSeparator) + "." + string(os.PathListSeparator), wantErr: "make controlplane"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv("KUBEBUILDER_ASSETS", test.env)
			t.Setenv("PATH", test.path)
			t.Chdir(cwd)
			got, err := FindAssets(test.given)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(test.want))
		})
	}
}

func TestIdentityIsKept(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	first, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.caPEM).To(Equal(first.caPEM))
	g.Expect(second.adminToken).To(Equal(first.adminToken))
	g.Expect(first.adminToken).NotTo(Equal(first.managerToken))
	g.Expect(second.writeServing(dir)).To(Succeed())

	// A damaged certificate authority is replaced, because it cannot sign anything.
	g.Expect(os.WriteFile(dir.pki(fileCAKey), []byte("nonsense"), 0o600)).To(Succeed())
	third, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.caPEM).NotTo(Equal(first.caPEM))
}

func TestNoSecretOnCommandLines(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	id, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range names {
		line := strings.Join(argv(name, "/assets", dir, ports{1, 2, 3}), " ")
		g.Expect(line).NotTo(ContainSubstring(id.adminToken))
		g.Expect(line).NotTo(ContainSubstring(id.managerToken))
		g.Expect(line).NotTo(ContainSubstring("=0.0.0.0"))
	}
}

func TestPortsStayWhenFree(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	first, err := choosePorts(dir, ports{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]int{first.APIServer, first.EtcdClient, first.EtcdPeer}).NotTo(ContainElement(0))

	loaded, err := loadPorts(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(loaded).To(Equal(first))

	// A port that another program uses is replaced.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().(*net.TCPAddr).Port
	second, err := choosePorts(dir, ports{APIServer: taken, EtcdClient: first.EtcdClient, EtcdPeer: first.EtcdPeer})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.APIServer).NotTo(Equal(taken))
}

func TestStopKillsWhoIgnoresTERM(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	mark := filepath.Join(dir.root, "ready")
	t.Setenv(stubbornMark, mark)
	stubborn, err := startChild(dir, nameEtcd, []string{os.Args[0]})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(mark, time.Minute).Should(BeAnExistingFile())
	g.Expect(dir.pid(nameEtcd)).To(BeAnExistingFile())
	g.Expect(stubborn.stop(200 * time.Millisecond)).To(Succeed())
	g.Expect(stubborn.ended()).To(BeTrue())
	g.Expect(dir.pid(nameEtcd)).NotTo(BeAnExistingFile())
}

func TestLogsAreBounded(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "x.log")
	g.Expect(os.WriteFile(path, []byte(strings.Repeat("0123456789abcde\n", logLimit/16)+"the end"), 0o600)).To(Succeed())
	boundLog(path)
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(BeZero())
	g.Expect(tail(path+".old", 7)).To(Equal("the end"))
	boundLog(path)
	g.Expect(tail(path+".old", 7)).To(Equal("the end"), "a small log is not changed")
}
