// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/certs"
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

func TestFindAssets_SearchesInOrder(t *testing.T) {
	whole, part, cwd := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{whole, cwd, filepath.Join(cwd, "bin")} {
		NewWithT(t).Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, program), nil, 0o755)).To(Succeed())
	}
	NewWithT(t).Expect(os.WriteFile(filepath.Join(part, program), nil, 0o644)).To(Succeed())
	for name, test := range map[string]struct{ given, env, path, want, wantErr string }{
		"given":                  {given: whole, want: whole},
		"given, not executable":  {given: part, env: whole, wantErr: part + " does not contain berth-apiserver: install it with"},
		"environment":            {env: whole, want: whole},
		"PATH":                   {env: part, path: part + string(os.PathListSeparator) + whole, want: whole},
		"working directory":      {wantErr: "go install"},
		"relative entry of PATH": {path: "bin" + string(os.PathListSeparator) + "." + string(os.PathListSeparator), wantErr: "go install"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv("KUBEBUILDER_ASSETS", test.env)
			t.Setenv("PATH", test.path)
			t.Chdir(cwd)
			got, err := findAssets(test.given)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(test.want))
		})
	}
}

func TestLoadIdentity_KeepsCredentials(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	first, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.caPEM).To(Equal(first.caPEM))
	g.Expect(second.adminToken).To(Equal(first.adminToken))
	g.Expect(second.writeServing(dir)).To(Succeed())

	// A damaged certificate authority is replaced, because it cannot sign anything.
	g.Expect(os.WriteFile(dir.pki(fileCAKey), []byte("nonsense"), 0o600)).To(Succeed())
	third, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.caPEM).NotTo(Equal(first.caPEM))
}

// An earlier version could create a certificate authority while the clock was ahead.
func TestLoadIdentity_ReplacesAuthorityThatIsNotValidYet(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	early, err := certs.Issue(x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(writePair(dir.pki(fileCA), dir.pki(fileCAKey), early)).To(Succeed())
	id, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(id.ca.Leaf.NotBefore).To(BeTemporally("<", time.Now()))
	same, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(same.caPEM).To(Equal(id.caPEM))
}

func TestNoSecretOnCommandLine(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	id, err := loadIdentity(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Join(argv("/assets", dir, 1), " ")).NotTo(ContainSubstring(id.adminToken))
}

func TestPortStaysWhenFree(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(loadPort(dir)).To(BeZero())
	first, err := choosePort(dir, 0)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first).NotTo(BeZero())
	g.Expect(loadPort(dir)).To(Equal(first))
	g.Expect(choosePort(dir, first)).To(Equal(first))

	// A port that another program uses is replaced.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().(*net.TCPAddr).Port
	g.Expect(choosePort(dir, taken)).NotTo(Equal(taken))
}

func TestStop_KillsProcessThatIgnoresSIGTERM(t *testing.T) {
	g := NewWithT(t)
	dir, err := makeLayout(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	mark := filepath.Join(dir.root, "ready")
	t.Setenv(stubbornMark, mark)
	stubborn, err := startChild(dir, program, []string{os.Args[0]})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(mark, time.Minute).Should(BeAnExistingFile())
	g.Expect(dir.pid(program)).To(BeAnExistingFile())
	g.Expect(stubborn.stop(200 * time.Millisecond)).To(Succeed())
	g.Expect(stubborn.ended()).To(BeTrue())
	g.Expect(dir.pid(program)).NotTo(BeAnExistingFile())
}

func TestBoundLogs_MovesLargeLogs(t *testing.T) {
	g := NewWithT(t)
	dir := layout{t.TempDir()}
	g.Expect(os.Mkdir(filepath.Dir(dir.log("x")), 0o700)).To(Succeed())
	large, small := ManagerLogPath(dir.root), dir.log(program)
	g.Expect(os.WriteFile(large, []byte(strings.Repeat("0123456789abcde\n", logLimit/16)+"the end"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(small, []byte("short"), 0o600)).To(Succeed())
	dir.boundLogs(t.Context())
	info, err := os.Stat(large)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(BeZero())
	info, err = os.Stat(large + ".old")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(BeNumerically("<=", logLimit))
	g.Expect(tail(large+".old", 7)).To(Equal("the end"))
	dir.boundLogs(t.Context())
	g.Expect(tail(large+".old", 7)).To(Equal("the end"), "a small log is not changed")
	g.Expect(os.ReadFile(small)).To(Equal([]byte("short")))
}

func TestBoundLogs_KeepsLogThatCannotBeMoved(t *testing.T) {
	g := NewWithT(t)
	dir := layout{t.TempDir()}
	path := ManagerLogPath(dir.root)
	g.Expect(os.MkdirAll(filepath.Join(path+".old", "in the way"), 0o700)).To(Succeed())
	for size, want := range map[int64]int64{2 * logLimit: 2 * logLimit, 4 * logLimit: 0} {
		g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		g.Expect(os.Truncate(path, size)).To(Succeed())
		dir.boundLogs(t.Context())
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Size()).To(Equal(want))
	}
}
