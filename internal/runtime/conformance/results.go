// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

func testResults(s *suite) {
	uid := newUID()
	place := s.Runtime.Capabilities().Results.Place(uid)
	s.Expect(s.Runtime.Capabilities().Results.Results(uid)).To(Equal(runtime.Results{}), "no process was started")
	s.runWithResults(uid, "results", "three findings")
	s.Expect(s.output(s.openLog(uid))).To(Equal("what was before\n"))

	// If Private is set, Results cannot read the artifacts folder and reports no artifacts.
	want := runtime.Results{File: true, Size: 14, SHA256: sha256Of("three findings"), Head: []byte("three findings"), Artifacts: !place.Private}
	s.Expect(s.Runtime.Capabilities().Results.Results(uid)).To(Equal(want))
	s.Runtime = s.Reopen(s.T)
	s.Expect(s.Runtime.Capabilities().Results.Place(uid)).To(Equal(place), "the paths never change")
	s.Expect(s.observe(uid).Phase).To(Equal(facts.Exited))
	s.Expect(s.Runtime.Capabilities().Results.Results(uid)).To(Equal(want))

	s.Expect(s.Runtime.Forget(s.ctx, uid)).To(Succeed())
	s.Expect(s.Runtime.Capabilities().Results.Results(uid)).To(Equal(runtime.Results{}))
	for _, path := range []string{place.File, place.Artifacts, place.Inputs} {
		s.Expect(path).NotTo(BeAnExistingFile())
	}
}

func testLargeResults(s *suite) {
	most := cmp.Or(s.MostResult, runtime.MostResultBytes)
	uid, text := newUID(), strings.Repeat("x", int(most))
	s.runWithResults(uid, "bulk", strconv.FormatInt(most, 10))
	s.Expect(s.Runtime.Capabilities().Results.Results(uid)).To(Equal(runtime.Results{
		File: true, Size: most, SHA256: sha256Of(text), Head: []byte(text[:min(most, runtime.ResultHeadBytes)])}))

	uid = newUID()
	s.runWithResults(uid, "bulk", strconv.FormatInt(most+1, 10))
	found := s.Runtime.Capabilities().Results.Results(uid)
	s.Expect(found.File).To(BeTrue())
	s.Expect(found.Problem).To(ContainSubstring(strconv.FormatInt(most+1, 10) + " bytes"))
	s.Expect(found.SHA256).To(BeEmpty())
	s.Expect(found.Head).To(BeEmpty())
}

// runWithResults runs a program with Results set and one input, and waits for its exit.
func (s *suite) runWithResults(uid types.UID, mode ...string) {
	s.Helper()
	place := s.Runtime.Capabilities().Results.Place(uid)
	p := s.process(uid, 1, mode...)
	p.Results, p.Inputs = true, map[string][]byte{"earlier": []byte("what was before\n")}
	p.Env = []string{"BERTH_RESULT_FILE=" + place.File, "BERTH_ARTIFACTS=" + place.Artifacts, "GIVEN=" + filepath.Join(place.Inputs, "earlier")}
	s.Expect(s.Runtime.Start(s.ctx, p)).To(Succeed())
	s.Expect(s.awaitPhase(uid, facts.Exited).Exit).To(HaveValue(And(HaveField("Known", true), HaveField("Code", BeZero()), HaveField("Signal", ""))))
}

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
