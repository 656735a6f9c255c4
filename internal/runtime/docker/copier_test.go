// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/runtime/logfile"
)

func TestNote_KeepsFewTimesAfterClockIsSetBack(t *testing.T) {
	g := NewWithT(t)
	c := &copier{}
	at := time.Unix(1_800_000_000, 0)
	count := func(messages int) {
		for range messages {
			at = at.Add(time.Millisecond)
			c.note(at.UnixNano())
			g.Expect(len(c.recent)).To(BeNumerically("<=", 50), "messages of the last 20 ms")
		}
		g.Expect(c.progress.Seen).To(Equal(len(c.recent)))
		g.Expect(at.Sub(time.Unix(0, c.progress.At))).To(BeNumerically("<=", 30*time.Millisecond))
	}
	count(1000)
	at = at.Add(-time.Hour)
	count(10_000)
	at = at.Add(2 * time.Hour)
	count(1000)
}

// logEngine returns a client of an engine that has only a log. entries are times, in seconds; the text of a message is its index.
func logEngine(t *testing.T, entries *[]int64) *client.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			w.Header().Set("Api-Version", "1.44")
			return
		}
		seconds, nanoseconds, _ := strings.Cut(r.URL.Query().Get("since"), ".")
		since, _ := strconv.ParseInt(seconds+nanoseconds, 10, 64)
		for i, at := range *entries {
			if at*int64(time.Second) < since {
				continue
			}
			text := fmt.Sprintf("%s %d\n", time.Unix(at, 0).UTC().Format(time.RFC3339Nano), i)
			header := [frameHeader]byte{1}
			binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
			_, _ = w.Write(append(header[:], text...))
		}
	}))
	t.Cleanup(server.Close)
	api, err := client.New(client.WithHost("tcp://" + strings.TrimPrefix(server.URL, "http://")))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = api.Close() })
	return api
}

func TestPlain_LosesNothingAfterClockIsSetBack(t *testing.T) {
	g := NewWithT(t)
	var entries []int64
	path := filepath.Join(t.TempDir(), "log")
	log, err := logfile.OpenWriter(path, 1<<20)
	g.Expect(err).NotTo(HaveOccurred())
	c := &copier{
		r: &Runtime{client: logEngine(t, &entries), log: logr.Discard(), Tasks: background.New()}, id: "id", log: log,
		path: filepath.Join(t.TempDir(), progressFile),
	}
	for at := int64(1_800_000_000); at < 1_800_000_100; at++ {
		entries = append(entries, at)
	}
	for at := int64(1_799_999_000); at < 1_799_999_100; at++ { // the clock was set back
		entries = append(entries, at)
	}
	g.Expect(c.pass(t.Context(), false)).To(Succeed())
	for at := int64(1_799_999_100); at < 1_799_999_200; at++ { // after an interruption
		entries = append(entries, at)
	}
	g.Expect(c.pass(t.Context(), false)).To(Succeed())
	g.Expect(log.Close()).To(Succeed())
	copied, err := logfile.Open(path)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = copied.Close() }()
	_, end, err := copied.Bounds()
	g.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(io.NewSectionReader(copied, 0, end))
	g.Expect(err).NotTo(HaveOccurred())
	lines := strings.Fields(string(text))
	for i := range entries {
		g.Expect(lines).To(ContainElement(strconv.Itoa(i)))
	}
}

// TestBegin_StartsNothingAfterClose has a call that got the lock of its entry before Close was called.
func TestBegin_StartsNothingAfterClose(t *testing.T) {
	g := NewWithT(t)
	log, err := logfile.OpenWriter(filepath.Join(t.TempDir(), "log"), 1<<20)
	g.Expect(err).NotTo(HaveOccurred())
	r := &Runtime{Tasks: background.New()}
	r.Tasks.Close()
	e := &entry{record: record{Incarnation: 1}}
	r.begin(e, &copier{r: r, log: log})
	g.Expect(e.copier).To(BeNil())
	g.Expect(log.Close()).NotTo(Succeed(), "the log is closed")
	r.pullFor(e, launch{})
	g.Expect(e.pull).To(BeNil())
	g.Expect(e.record).To(BeZero(), "the next manager repeats the start")
}
