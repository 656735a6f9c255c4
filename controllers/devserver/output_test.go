// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// expectOutputURLs reads the output of incarnation 1 until exactly the wanted addresses are found in the output.
func (s *fixture) expectOutputURLs(want ...string) {
	dev, m := server("web", 0, running(80)), s.cacheOf("uid-web")
	s.g.Eventually(func() []string {
		got := []string{}
		for _, u := range s.urls(dev, m, 1) {
			got = append(got, u.String())
		}
		s.advanceProbes()
		return got
	}, long, time.Millisecond).Should(Equal(want))
}

func TestOutput_SkipsEarlierIncarnations(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("http://localhost:1000/old/\n")
	s.prepare(server("web", 0))
	s.backend.log.append("http://localhost:2000/new/\nhttp://localhost:2000/later/\n")
	s.expectOutputURLs("http://localhost:2000/new/")
}

func TestOutput_UsesLastURLWithUnknownStart(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("http://localhost:1000/old/\nhttp://localhost:1000/new/\n")
	s.expectOutputURLs("http://localhost:1000/new/")
}

func TestOutput_IsFollowedAsItArrives(t *testing.T) {
	s := newFixture(t)
	s.prepare(server("web", 0))
	s.expectOutputURLs([]string{}...)
	s.backend.mu.Lock()
	s.backend.log = newLog("starting\n")
	s.backend.mu.Unlock()
	s.expectOutputURLs([]string{}...)
	s.backend.log.append("http://localhost:10")
	s.backend.log.append("00/app")
	s.expectOutputURLs("http://localhost:1000/app")
}

func TestOutput_SkipsDiscardedBeginning(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("")
	s.prepare(server("web", 0))
	gone := "http://localhost:1000/gone/\n"
	s.backend.log.append(gone + "http://localhost:2000/\n")
	s.backend.log.discardBefore(int64(len(gone)))
	s.expectOutputURLs("http://localhost:2000/")
}

func TestOutput_IsSearchedUpToLimit(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("http://localhost:1000/\n" + strings.Repeat("x", textLimit) + "\nhttp://localhost:2000/\n")
	s.prepare(server("web", 0))
	s.cacheOf("uid-web").logEnd = 0
	s.expectOutputURLs("http://localhost:1000/")
	s.g.Consistently(func() int { return len(s.urls(server("web", 0), s.cacheOf("uid-web"), 1)) }, "300ms").Should(Equal(1))
}
