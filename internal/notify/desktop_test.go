// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bufio"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

// startBus starts a session bus and returns its address.
func startBus(t *testing.T) string {
	t.Helper()
	need.Programs(t, "dbus-daemon")
	g := NewWithT(t)
	bus := exec.Command("dbus-daemon", "--session", "--nofork", "--print-address")
	out, err := bus.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bus.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(address)
}

// shown is a notification that the desktop got.
type shown struct{ app, summary, body string }

// desktop is a notification server.
type desktop struct {
	capabilities []string
	shown        chan shown
}

// GetCapabilities is a method of the service.
func (d *desktop) GetCapabilities() ([]string, *dbus.Error) { return d.capabilities, nil }

// Notify is a method of the service.
func (d *desktop) Notify(app string, _ uint32, _, summary, body string, _ []string, _ map[string]dbus.Variant, _ int32) (uint32, *dbus.Error) {
	d.shown <- shown{app, summary, body}
	return 1, nil
}

// serve owns the name of the service on a bus.
func (d *desktop) serve(t *testing.T, address string) {
	t.Helper()
	g := NewWithT(t)
	bus, err := dbus.Connect(address)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = bus.Close() })
	g.Expect(bus.Export(d, "/org/freedesktop/Notifications", notifications)).To(Succeed())
	reply, err := bus.RequestName(notifications, dbus.NameFlagDoNotQueue)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reply).To(Equal(dbus.RequestNameReplyPrimaryOwner))
}

func TestDesktop_NotifiesOverTheSessionBus(t *testing.T) {
	for name, tc := range map[string]struct {
		capabilities []string
		markup       string
	}{
		"with markup":    {[]string{"body", "body-markup"}, "&lt;b&gt;bold&lt;/b&gt; &amp; ;x"},
		"without markup": {[]string{"body"}, "<b>bold</b> & ;x"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			address := startBus(t)
			sender, err := NewDesktop(environment(map[string]string{"DBUS_SESSION_BUS_ADDRESS": address}))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(sender.Send(t.Context(), hostileMessage())).To(MatchError(ContainSubstring(notifications)), "no desktop")

			server := &desktop{tc.capabilities, make(chan shown, 2)}
			server.serve(t, address)
			g.Expect(sender.Send(t.Context(), hostileMessage())).To(Succeed())
			var got shown
			g.Expect(server.shown).To(Receive(&got))
			g.Expect(got.app).To(Equal("Berth"))
			g.Expect(got.summary).To(Equal("Berth: instance/agent waits for you"))
			g.Expect(got.body).To(HaveSuffix(tc.markup))
			g.Expect(got.body).NotTo(ContainAny("\x1b", "\a", "\n", "\u009b"))
		})
	}
}

func TestDesktop_IsBoundedInTime(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	silent, err := net.Listen("unix", filepath.Join(dir, "bus")) // accepts connections and never answers
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = silent.Close() })
	sender, err := NewDesktop(environment(map[string]string{"XDG_RUNTIME_DIR": dir}))
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan error, 1)
	go func() { done <- sender.Send(t.Context(), hostileMessage()) }()
	g.Eventually(done).WithTimeout(desktopTimeout + 10*time.Second).Should(Receive(HaveOccurred()))
}

func TestNewDesktop_StartsNoBus(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing": {}, "autolaunch": {"DBUS_SESSION_BUS_ADDRESS": "autolaunch:"}, "no socket": {"XDG_RUNTIME_DIR": t.TempDir()}, "a relative path": {"XDG_RUNTIME_DIR": "."},
	} {
		_, err := NewDesktop(environment(env))
		NewWithT(t).Expect(err).To(MatchError(ErrNoBus), name)
	}
}
