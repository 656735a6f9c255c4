// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// connectToShim returns the client end of a connection to a shim without a process.
func connectToShim(t *testing.T) net.Conn {
	t.Helper()
	s := &shim{identity: Identity{Token: "secret", Incarnation: 7, Child: procstat.Process{PID: 1, Ticks: 2}}}
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = server.Close() }()
		s.converse(server)
	}()
	t.Cleanup(func() {
		_ = client.Close()
		<-done
	})
	return client
}

func TestServer_NegotiatesVersion(t *testing.T) {
	for name, test := range map[string]struct {
		says, agreed int
		refused      bool
	}{
		"the same":     {says: Version, agreed: Version},
		"the previous": {says: previousVersion, agreed: previousVersion},
		"a newer":      {says: Version + 5, agreed: Version},
		"too old":      {says: previousVersion - 1, agreed: Version, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			conn := connectToShim(t)
			g.Expect(writeFrame(conn, callFrame{Version: test.says, Verb: verbHello})).To(Succeed())
			var answer answerFrame
			g.Expect(readFrame(conn, &answer)).To(Succeed())
			g.Expect(answer.Version).To(Equal(test.agreed))
			if test.refused {
				g.Expect(answer.Error).To(ContainSubstring("too old"))
				g.Expect(answer.Token).To(BeEmpty())
				return
			}
			g.Expect(answer.Token).To(Equal("secret"))
			g.Expect(writeFrame(conn, callFrame{Version: test.agreed, Verb: verbStatus})).To(Succeed())
			g.Expect(readFrame(conn, &answer)).To(Succeed())
			g.Expect(answer.Version).To(Equal(test.agreed), "the answer has the negotiated version")
			g.Expect(answer.Identity.Child.PID).To(Equal(1))
		})
	}
}

// A manager accepts a shim of the previous version, but none that is older or answers with an unknown version.
func TestClient_RejectsUnsupportedVersions(t *testing.T) {
	for version, good := range map[int]bool{Version: true, previousVersion: true, previousVersion - 1: false, Version + 1: false} {
		g := NewWithT(t)
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			var call callFrame
			if readFrame(server, &call) == nil {
				_ = writeFrame(server, answerFrame{Version: version, Token: "secret"})
			}
		}()
		c, err := newClient(client, "secret", 10*time.Second)
		if good {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.version).To(Equal(version))
			g.Expect(c.Conn.Close()).To(Succeed())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring("version")))
		}
	}
}

func TestProtocol_RejectsImpostorsAndBadCalls(t *testing.T) {
	g := NewWithT(t)
	_, err := newClient(connectToShim(t), "another", 10*time.Second)
	g.Expect(err).To(MatchError(ErrImpostor))

	conn := connectToShim(t)
	g.Expect(writeFrame(conn, callFrame{Version: Version, Verb: verbStatus})).To(Succeed())
	var answer answerFrame
	g.Expect(readFrame(conn, &answer)).To(Succeed())
	g.Expect(answer.Error).To(ContainSubstring("Hello"))

	c, err := newClient(connectToShim(t), "secret", 10*time.Second)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.call(callFrame{Verb: "Dance"})
	g.Expect(err).To(MatchError(ContainSubstring("Dance")))
	g.Expect(c.Attach(80, 24)).To(MatchError(ErrNoTerminal))
}

func TestPuncher_LimitsDiskSpace(t *testing.T) {
	g := NewWithT(t)
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	const limit = 256 << 10
	p := Puncher{File: file, Limit: limit}
	now := time.Now()
	var st unix.Stat_t
	for i := range 100 {
		_, err := file.Write(make([]byte, 50_000))
		g.Expect(err).NotTo(HaveOccurred())
		now = now.Add(time.Millisecond)
		next := p.Check(now)
		if i > 0 {
			g.Expect(next).To(Equal(fastCheck), "a flood is checked often")
		}
		g.Expect(unix.Fstat(int(file.Fd()), &st)).To(Succeed())
		g.Expect(st.Blocks * 512).To(BeNumerically("<=", limit))
	}
	g.Expect(st.Size).To(BeEquivalentTo(5_000_000), "offsets do not change")
	for range 20 {
		now = now.Add(p.Check(now))
	}
	g.Expect(p.Check(now)).To(Equal(slowCheck), "a silent log is checked rarely")
}
