// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime"
)

func results(s *suite) {
	uid := newUID()
	place := s.Runtime.(runtime.Keeper).Place(uid)
	s.Expect(s.Runtime.(runtime.Keeper).Results(uid)).To(Equal(runtime.Results{}), "nothing was started")
	p := s.process(uid, 1, "results", "three findings")
	p.Results, p.Inputs = true, map[string][]byte{"earlier": []byte("what was before\n")}
	p.Env = []string{"BERTH_RESULT_FILE=" + place.File, "BERTH_ARTIFACTS=" + place.Artifacts, "GIVEN=" + filepath.Join(place.Inputs, "earlier")}
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.Expect(s.awaitPhase(uid, runtime.Exited).Exit.Code).To(BeZero())
	s.Expect(s.output(s.openLog(uid))).To(Equal("what was before\n"))

	sum := sha256.Sum256([]byte("three findings"))
	want := runtime.Results{File: true, Size: 14, SHA256: hex.EncodeToString(sum[:]), Head: []byte("three findings"), Artifacts: true}
	s.Expect(s.Runtime.(runtime.Keeper).Results(uid)).To(Equal(want))
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.Runtime.(runtime.Keeper).Place(uid)).To(Equal(place), "the same for ever")
	s.Expect(s.Runtime.(runtime.Keeper).Results(uid)).To(Equal(want))

	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed())
	s.Expect(s.Runtime.(runtime.Keeper).Results(uid)).To(Equal(runtime.Results{}))
	for _, path := range []string{place.File, place.Artifacts, place.Inputs} {
		s.Expect(path).NotTo(BeAnExistingFile())
	}
}
