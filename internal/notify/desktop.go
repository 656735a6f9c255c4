// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/berth-dev/berth/internal/printable"
)

// desktopTimeout bounds one notification of the desktop.
const desktopTimeout = 5 * time.Second

// notifications is the service of a desktop (Desktop Notifications Specification): name, interface and prefix of its methods.
const notifications = "org.freedesktop.Notifications"

// ErrNoBus is the error of NewDesktop without a session bus.
var ErrNoBus = errors.New("no D-Bus session bus: DBUS_SESSION_BUS_ADDRESS is not set, and XDG_RUNTIME_DIR contains no socket named bus")

// Desktop shows notifications on the desktop of the user, over the D-Bus session bus.
type Desktop struct{ address string }

// NewDesktop returns a sender for the session bus that getenv describes. It starts no bus. It returns ErrNoBus if there is none.
func NewDesktop(getenv func(string) string) (*Desktop, error) {
	if address := getenv("DBUS_SESSION_BUS_ADDRESS"); address != "" && !strings.HasPrefix(address, "autolaunch:") {
		return &Desktop{address}, nil
	}
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		socket := filepath.Join(dir, "bus")
		if info, err := os.Stat(socket); err == nil && info.Mode()&os.ModeSocket != 0 {
			return &Desktop{"unix:path=" + dbus.EscapeBusAddressValue(socket)}, nil
		}
	}
	return nil, ErrNoBus
}

func (d *Desktop) String() string { return "desktop" }

// Destination implements Sender.
func (d *Desktop) Destination() string { return d.String() }

// Send implements Sender. It connects for each message, so that a new session bus is no failure.
func (d *Desktop) Send(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, desktopTimeout)
	defer cancel()
	bus, err := dbus.Connect(d.address, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("connect to the D-Bus session bus: %w", err)
	}
	defer func() { _ = bus.Close() }()
	service := bus.Object(notifications, "/org/freedesktop/Notifications")
	title, body := printable.Line(m.Title), printable.Text(m.Body)
	// A server with the capability body-markup interprets the body, others show it as it is. In doubt, the characters of markup are escaped.
	var capabilities []string
	if err := service.CallWithContext(ctx, notifications+".GetCapabilities", 0).Store(&capabilities); err != nil || slices.Contains(capabilities, "body-markup") {
		body = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(body)
	}
	hints := map[string]dbus.Variant{"urgency": dbus.MakeVariant(byte(1)), "category": dbus.MakeVariant("im.received")}
	const serverDecides = int32(-1) // how long the notification is shown
	call := service.CallWithContext(ctx, notifications+".Notify", 0, "Berth", uint32(0), "", title, body, []string{}, hints, serverDecides)
	if call.Err != nil {
		return fmt.Errorf("call %s: %w", notifications, call.Err)
	}
	return nil
}
