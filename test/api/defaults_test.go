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

// cleanupContext is the context for requests that a test sends during its cleanup.
var cleanupContext = context.Background()

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

func TestDefaults_ProcessKinds(t *testing.T) {
	own := map[string]string{
		kindInstance:  `{terminal: {columns: 120, rows: 40}, adoption: Never, idleTimeoutSeconds: 0}`,
		kindDevServer: `{url: {detect: Enabled}, proxy: Disabled}`,
		kindLanguageServer: `
language: go
workspace: {folders: [/src]}
limits:
  maxHeaderSize: 8Ki
  maxMessageSize: 64Mi
  maxClientMessageSize: 32Mi
  maxClients: 64
  maxOpenDocuments: 1000
  maxDocumentsSize: 64Mi
  maxInFlight: 64
  maxQueueSize: 8Mi
  requestTimeoutSeconds: 120
hold: {timeoutSeconds: 30, maxRequests: 256, maxSize: 16Mi}
health: {pingAfterSeconds: 10, hangTimeoutSeconds: 60}
startupTimeoutSeconds: 300
whileIndexing: Forward
idleTimeoutSeconds: 1800
`,
	}
	for _, kind := range processKinds {
		t.Run(kind, func(t *testing.T) {
			want := parse(t, sharedDefaults)
			merge(want, parse(t, own[kind]))
			o := object(t, kind, "defaulted", "{}")
			NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
			expectEqualJSON(t, want, o.Object["spec"])
		})
	}
}

func TestDefaults_Probes(t *testing.T) {
	o := object(t, kindDevServer, "defaulted", `
spec:
  readiness: {httpGet: {}}
  liveness: {exec: {command: ["true"]}, periodSeconds: 9}
`)
	NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
	spec, ok := o.Object["spec"].(map[string]any)
	NewWithT(t).Expect(ok).To(BeTrue())
	expectEqualJSON(t, parse(t, `
httpGet: {path: /, scheme: HTTP}
periodSeconds: 5
timeoutSeconds: 2
failureThreshold: 3
`), spec["readiness"])
	expectEqualJSON(t, parse(t, `
exec: {command: ["true"]}
periodSeconds: 9
timeoutSeconds: 2
failureThreshold: 3
`), spec["liveness"])
}

// TestLanguageServer_StoresSettingsUnchanged checks that the settings of a language server are stored unchanged.
func TestLanguageServer_StoresSettingsUnchanged(t *testing.T) {
	o := object(t, kindLanguageServer, "kept", `
spec:
  settings: {gopls: {"ui.semanticTokens": true, buildFlags: [-tags=x], deep: {number: 1.5, none: {}}}}
  initializationOptions: {provider: {a: 1}}
  health: {canary: {method: workspace/symbol, params: {query: main}}}
`)
	NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
	spec, ok := o.Object["spec"].(map[string]any)
	NewWithT(t).Expect(ok).To(BeTrue())
	expectEqualJSON(t, parse(t, `gopls: {"ui.semanticTokens": true, buildFlags: [-tags=x], deep: {number: 1.5, none: {}}}`), spec["settings"])
	expectEqualJSON(t, parse(t, `provider: {a: 1}`), spec["initializationOptions"])
	expectEqualJSON(t, parse(t, `
pingAfterSeconds: 10
hangTimeoutSeconds: 60
canary: {method: workspace/symbol, params: {query: main}, periodSeconds: 60}
`), spec["health"])
}

// expectEqualJSON expects two values to be equal when they are encoded as JSON. The comparison therefore ignores the Go types of numbers.
func expectEqualJSON(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(roundTripJSON(t, want), roundTripJSON(t, got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func roundTripJSON(t *testing.T, value any) any {
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
