// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestPlan_ApprovalNamesWhatWaits sends raw patches, as clients without the checks of berth plan approve do.
func TestPlan_ApprovalNamesWhatWaits(t *testing.T) {
	const (
		executeWaits = `{"currentPhase":"Strategize","state":"Complete","attempt":2}`
		applyWaits   = `{"currentPhase":"Execute","state":"Complete","attempt":2}`
		executeOf2   = `{"spec":{"approval":{"phase":"Execute","attempt":2}}}`
		applyOf2     = `{"spec":{"approval":{"phase":"Apply","attempt":2}}}`

		notWaiting = "spec.approval must name the phase and the attempt that wait for approval now"
		requested  = "spec.approval cannot be set while a retry, a revert or a cancellation is requested"
		notStarted = "spec.approval names an attempt that has not started"
	)
	for name, tc := range map[string]struct {
		spec, status, patch string
		refused             string
	}{
		"Execute, which waits":                   {`{}`, executeWaits, executeOf2, ""},
		"Apply, which waits":                     {`{}`, applyWaits, applyOf2, ""},
		"Execute and Apply, while Execute waits": {`{}`, executeWaits, `{"spec":{"approval":{"phase":"Execute","attempt":2,"toPhase":"Apply"}}}`, ""},
		"after a retry that Berth acted on":      {`{spec: {retryToken: a}}`, `{"currentPhase":"Strategize","state":"Complete","attempt":2,"observedRetryToken":"a"}`, executeOf2, ""},
		"after a revert that Berth acted on":     {`{spec: {revert: {token: a}}}`, `{"currentPhase":"Strategize","state":"Complete","attempt":2,"observedRevertToken":"a"}`, executeOf2, ""},

		"Apply, while Execute waits":        {`{}`, executeWaits, applyOf2, notWaiting},
		"Execute, while Apply waits":        {`{}`, applyWaits, executeOf2, notWaiting},
		"an older attempt":                  {`{}`, executeWaits, `{"spec":{"approval":{"phase":"Execute","attempt":1}}}`, notWaiting},
		"a later attempt":                   {`{}`, executeWaits, `{"spec":{"approval":{"phase":"Execute","attempt":3}}}`, notStarted},
		"while Strategize runs":             {`{}`, `{"currentPhase":"Strategize","state":"Processing","attempt":2}`, executeOf2, notWaiting},
		"while Execute runs":                {`{}`, `{"currentPhase":"Execute","state":"Processing","attempt":2}`, executeOf2, notWaiting},
		"Apply, while Execute runs":         {`{}`, `{"currentPhase":"Execute","state":"Processing","attempt":2}`, applyOf2, notWaiting},
		"after a failure":                   {`{}`, `{"currentPhase":"Execute","state":"Errored","attempt":2}`, applyOf2, notWaiting},
		"after Apply":                       {`{}`, `{"currentPhase":"Apply","state":"Applied","attempt":2}`, applyOf2, notWaiting},
		"before the start":                  {`{}`, `{"state":"Queued"}`, executeOf2, notStarted},
		"while a retry is requested":        {`{spec: {retryToken: b}}`, `{"currentPhase":"Strategize","state":"Complete","attempt":2,"observedRetryToken":"a"}`, executeOf2, requested},
		"while a revert is requested":       {`{spec: {revert: {token: b}}}`, `{"currentPhase":"Execute","state":"Complete","attempt":2,"observedRevertToken":"a"}`, applyOf2, requested},
		"while a first revert is requested": {`{spec: {revert: {token: b}}}`, applyWaits, applyOf2, requested},
		"while a cancellation is requested": {`{spec: {state: Cancelled}}`, applyWaits, applyOf2, requested},
		"together with a retry":             {`{}`, executeWaits, `{"spec":{"retryToken":"a","retryFrom":{"phase":"Strategize","attempt":2},"approval":{"phase":"Execute","attempt":2}}}`, requested},
		"together with a revert":            {`{}`, applyWaits, `{"spec":{"revert":{"token":"a","from":{"phase":"Execute","attempt":2}},"approval":{"phase":"Apply","attempt":2}}}`, requested},
		"a higher target":                   {`{}`, executeWaits, `{"spec":{"targetPhase":"Execute"}}`, "targetPhase may be raised only together with revert.token"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := createObject(t, kindPlan, tc.spec)
			patch := func(text string) error {
				return k8s.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text)))
			}
			g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"status":`+tc.status+`}`)))).To(Succeed())
			err := patch(tc.patch)
			if tc.refused != "" {
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
				g.Expect(err.Error()).To(ContainSubstring(tc.refused))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			// The plan continues: its status, its other fields and a withdrawal of the approval are still accepted.
			next := `{"status":{"currentPhase":"Execute","state":"Processing"}}`
			g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(next)))).To(Succeed())
			g.Expect(patch(tc.patch)).To(Succeed(), "the same approval again changes nothing")
			g.Expect(patch(`{"spec":{"retryToken":"z","retryFrom":{"phase":"Execute","attempt":2}}}`)).To(Succeed())
			g.Expect(patch(`{"spec":{"approval":null}}`)).To(Succeed())
		})
	}
}

// TestPlan_RetryAndRevertNameWhatTheirUserSaw sends raw patches, as clients without the checks of berth plan retry and berth plan revert do.
func TestPlan_RetryAndRevertNameWhatTheirUserSaw(t *testing.T) {
	const (
		executing = `{"currentPhase":"Execute","state":"Processing","attempt":2}`
		failed    = `{"currentPhase":"Apply","state":"Errored","attempt":2}`

		retry, retryFrom   = `"retryToken":"a"`, `"retryFrom":`
		revert, revertFrom = `"targetPhase":"Apply","revert":{"token":"a"`, `"from":`
		position           = "with the current phase and attempt"
	)
	for name, tc := range map[string]struct {
		spec, status, from string
		refused            bool
	}{
		"the current phase and attempt":    {`{}`, executing, `{"phase":"Execute","attempt":2}`, false},
		"a failed phase":                   {`{}`, failed, `{"phase":"Apply","attempt":2}`, false},
		"an older phase":                   {`{}`, failed, `{"phase":"Execute","attempt":2}`, true},
		"an older attempt":                 {`{}`, executing, `{"phase":"Execute","attempt":1}`, true},
		"a later attempt":                  {`{}`, executing, `{"phase":"Execute","attempt":3}`, true},
		"nothing":                          {`{}`, executing, ``, true},
		"a plan that has not started":      {`{}`, `{"state":"Queued"}`, `{"phase":"Strategize","attempt":1}`, true},
		"what an earlier request named":    {`{spec: {retryToken: z, retryFrom: {phase: Execute, attempt: 1}, revert: {token: z, from: {phase: Execute, attempt: 1}}}}`, executing, ``, true},
		"the same request as before, late": {`{spec: {retryToken: a, revert: {token: a}, targetPhase: Apply}}`, executing, `{"phase":"Execute","attempt":1}`, false},
	} {
		for request, text := range map[string]string{
			"retry":  `{"spec":{` + retry + optional(retryFrom, tc.from) + `}}`,
			"revert": `{"spec":{` + revert + optional(revertFrom, tc.from) + `}}}`,
		} {
			t.Run(request+" from "+name, func(t *testing.T) {
				g := NewWithT(t)
				o := createObject(t, kindPlan, tc.spec)
				g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"status":`+tc.status+`}`)))).To(Succeed())
				err := k8s.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text)))
				if tc.refused {
					g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
					g.Expect(err.Error()).To(ContainSubstring(position))
					return
				}
				g.Expect(err).NotTo(HaveOccurred())
				next := `{"status":{"attempt":3,"currentPhase":"Strategize","state":"Processing"}}`
				g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(next)))).To(Succeed(), "the plan continues")
				g.Expect(k8s.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"Cancelled"}}`)))).To(Succeed())
			})
		}
	}
}

// optional returns a field of a JSON object that follows others, or an empty string without a value.
func optional(field, value string) string {
	if value == "" {
		return ""
	}
	return "," + field + value
}
