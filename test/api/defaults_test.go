// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
)

// cleanup is the context for requests after a test has ended.
var cleanup = context.Background()

const sharedDefaults = `
state: Running
restartPolicy: Always
updatePolicy: Recreate
backoff: {initialSeconds: 1, maxSeconds: 60, resetAfterSeconds: 60}
breaker: {failureThreshold: 5, windowSeconds: 180, coolDownSeconds: 600}
process:
  command: [sleep, infinity]
  stop: {gracePeriodSeconds: 10}
`

func TestDefaults(t *testing.T) {
	own := map[string]string{
		kindInstance:  `{terminal: {columns: 120, rows: 40}, adoption: Never, idleTimeoutSeconds: 0}`,
		kindDevServer: `{url: {detect: Enabled}, proxy: Disabled}`,
		kindLanguageServer: `
language: go
workspace: {folders: [/src]}
limits:
  headerBytes: 8192
  messageBytes: 67108864
  clientMessageBytes: 33554432
  clients: 64
  openDocuments: 1000
  documentBytes: 67108864
  inFlight: 64
  queueBytes: 8388608
  requestTimeoutSeconds: 120
hold: {timeoutSeconds: 30, requests: 256, bytes: 16777216}
health: {pingAfterSeconds: 10, hangTimeoutSeconds: 60}
startupTimeoutSeconds: 300
whileIndexing: Forward
idleTimeoutSeconds: 1800
`,
	}
	for _, kind := range every {
		t.Run(kind, func(t *testing.T) {
			want := parse(t, sharedDefaults)
			merge(want, parse(t, own[kind]))
			o := object(t, kind, "defaulted", "{}")
			NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
			expectSame(t, want, o.Object["spec"])
		})
	}
}

func TestProbeDefaults(t *testing.T) {
	o := object(t, kindDevServer, "defaulted", `
spec:
  readiness: {httpGet: {}}
  liveness: {exec: {command: ["true"]}, periodSeconds: 9}
`)
	NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
	spec, ok := o.Object["spec"].(map[string]any)
	NewWithT(t).Expect(ok).To(BeTrue())
	expectSame(t, parse(t, `
httpGet: {path: /, scheme: http}
periodSeconds: 5
timeoutSeconds: 2
failureThreshold: 3
`), spec["readiness"])
	expectSame(t, parse(t, `
exec: {command: ["true"]}
periodSeconds: 9
timeoutSeconds: 2
failureThreshold: 3
`), spec["liveness"])
}

// TestWhatIsPassedOnIsKept checks that the settings of a language server are stored unchanged.
func TestWhatIsPassedOnIsKept(t *testing.T) {
	o := object(t, kindLanguageServer, "kept", `
spec:
  settings: {gopls: {"ui.semanticTokens": true, buildFlags: [-tags=x], deep: {number: 1.5, none: {}}}}
  initializationOptions: {provider: {a: 1}}
  health: {canary: {method: workspace/symbol, params: {query: main}}}
`)
	NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
	spec, ok := o.Object["spec"].(map[string]any)
	NewWithT(t).Expect(ok).To(BeTrue())
	expectSame(t, parse(t, `gopls: {"ui.semanticTokens": true, buildFlags: [-tags=x], deep: {number: 1.5, none: {}}}`), spec["settings"])
	expectSame(t, parse(t, `provider: {a: 1}`), spec["initializationOptions"])
	expectSame(t, parse(t, `
pingAfterSeconds: 10
hangTimeoutSeconds: 60
canary: {method: workspace/symbol, params: {query: main}, periodSeconds: 60}
`), spec["health"])
}

// expectSame expects two values to be equal when they are encoded as JSON. So it ignores the Go types of numbers.
func expectSame(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func plain(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
