// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
)

// The times of an engine on another machine are reported by the clock of this machine: a container that has just started is not ten minutes old.
func TestTimes_OfEngineWithOtherClockAreConverted(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Second, -10 * time.Minute, 10 * time.Minute, -3 * time.Hour} {
		g := NewWithT(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/info") {
				_ = json.NewEncoder(w).Encode(system.Info{Name: "far", SystemTime: time.Now().Add(ahead).Format(time.RFC3339Nano)})
			}
		}))
		t.Cleanup(server.Close)
		api, err := client.New(client.WithHost("tcp://" + strings.TrimPrefix(server.URL, "http://")))
		g.Expect(err).NotTo(HaveOccurred())
		r, started := &Runtime{client: api}, time.Now().Add(-time.Minute)
		_, now, err := r.ask(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now).To(BeTemporally("~", time.Now().Add(ahead), time.Second), "requests to the engine use its own clock")

		state := &container.State{Status: container.StateExited, ExitCode: 1,
			StartedAt: started.Add(ahead).Format(time.RFC3339Nano), FinishedAt: started.Add(ahead + time.Second).Format(time.RFC3339Nano)}
		e, i := &entry{}, facts.Incarnation{}
		c := &container.InspectResponse{ID: "c", State: state}
		r.describe(e, &i, c)
		g.Expect(i.StartedAt).To(BeTemporally("~", started, sameClock), "engine ahead by %s", ahead)
		r.gone(&entry{record: record{StartedAt: started.Add(ahead), GoneAt: started}}, &i)
		g.Expect(i.StartedAt).To(BeTemporally("~", started, sameClock))
		g.Expect(i.Exit.FinishedAt).To(Equal(started), "this machine has noticed the removal")
		g.Expect(r.local(when(""))).To(BeZero())
	}
}
