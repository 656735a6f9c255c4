// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// transition is an update of an object. The API server must refuse it with an error that contains message, or allow it if message is empty.
type transition struct {
	name    string
	kinds   []string
	before  string
	after   string
	message string
}

// wholePod sets all fields of spec.runtime.pod.
const wholePod = `{spec: {runtime: {type: Pod, pod: {image: a, imagePullPolicy: Never, serviceAccountName: agent, nodeSelector: {disk: ssd},
	resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 100m}}, tolerations: [{key: spot, operator: Exists}],
	volumes: [{name: tmp, emptyDir: {sizeLimit: 1Gi}}], volumeMounts: [{name: tmp, mountPath: /tmp, readOnly: false}],
	volumeClaimTemplates: [{name: home, mountPath: /home/agent, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}],
	template: {metadata: {labels: {team: a}}, spec: {priorityClassName: low}}}}}}`

var transitions = []transition{
	{name: "session set later", kinds: processKinds, before: `{}`, after: `{spec: {session: a}}`, message: "session is immutable"},
	{name: "session changed", kinds: processKinds, before: `{spec: {session: a}}`, after: `{spec: {session: b}}`, message: "session is immutable"},
	{name: "session removed", kinds: processKinds, before: `{spec: {session: a}}`, after: `{spec: {session: null}}`, message: "session is immutable"},
	{name: "an empty session removed", kinds: processKinds, before: `{spec: {session: ""}}`, after: `{spec: {session: null}}`},
	{name: "runtime set later", kinds: processKinds, before: `{}`, after: `{spec: {runtime: {type: Host}}}`, message: "runtime is immutable"},
	{name: "runtime removed", kinds: processKinds, before: `{spec: {runtime: {type: Host}}}`, after: `{spec: {runtime: null}}`, message: "runtime is immutable"},
	{
		name: "another type of runtime", kinds: []string{kindDevServer, kindInstance},
		before: `{spec: {runtime: {type: Pod, pod: {image: a}}}}`, after: `{spec: {runtime: {type: Host, pod: null}}}`, message: "runtime is immutable, except for the fields of pod",
	},
	{
		name: "another session of tmux", kinds: instanceOnly,
		before: `{spec: {runtime: {type: Tmux, tmux: {session: a}}}}`, after: `{spec: {runtime: {tmux: {session: b}}}}`, message: "runtime is immutable, except for the fields of pod",
	},
	{
		name: "another image for Docker", kinds: instanceOnly,
		before: `{spec: {runtime: {type: Docker, docker: {image: a}}}}`, after: `{spec: {runtime: {docker: {image: b}}}}`, message: "runtime is immutable, except for the fields of pod",
	},
	{
		name: "another image for a Pod", kinds: []string{kindDevServer, kindInstance, kindStrategy},
		before: wholePod, after: `{spec: {runtime: {pod: {image: b, template: {spec: {hostname: web}}}}}}`,
	},
	{
		name: "command removed on a machine", kinds: kindsWithProgram,
		before: `{}`, after: `{spec: {process: {command: null}}}`, message: "command is required",
	},
	{
		name: "command removed in a Pod", kinds: []string{kindDevServer, kindInstance, kindStrategy},
		before: wholePod, after: `{spec: {process: {command: null}}}`,
	},
	{
		name: "command removed for Docker", kinds: instanceOnly,
		before: `{spec: {adoption: IfExists, runtime: {type: Docker, docker: {image: a, container: b}}}}`, after: `{spec: {process: {command: null}}}`,
	},
	{
		name: "Pod replaced by a machine without a command", kinds: strategyOnly,
		before: `{spec: {process: {command: null}, runtime: {type: Pod, pod: {image: a}}}}`, after: `{spec: {runtime: null}}`, message: "command is required",
	},
	{
		name: "instanceRef set later", kinds: ownedKinds,
		before: `{}`, after: `{spec: {instanceRef: {name: a}}}`, message: "instanceRef is immutable",
	},
	{
		name: "instanceRef changed", kinds: ownedKinds,
		before: `{spec: {instanceRef: {name: a}}}`, after: `{spec: {instanceRef: {name: b}}}`, message: "instanceRef is immutable",
	},
	{
		name: "instanceRef removed", kinds: ownedKinds,
		before: `{spec: {instanceRef: {name: a}}}`, after: `{spec: {instanceRef: null}}`, message: "instanceRef is immutable",
	},
	{name: "another program", kinds: processKinds, before: `{}`, after: `{spec: {process: {command: [cat]}}}`},
	{name: "a restart requested", kinds: processKinds, before: `{spec: {session: a, runtime: {type: Host}}}`, after: `{spec: {restartToken: "1", state: Stopped}}`},
	{name: "OnDemand with an idle timeout", kinds: languageServerOnly, before: `{}`, after: `{spec: {state: OnDemand, idleTimeoutSeconds: 5}}`},
	{name: "another folder and settings", kinds: languageServerOnly, before: `{}`, after: `{spec: {workspace: {folders: [/lib]}, settings: {a: {b: [1]}}}}`},
	{name: "another port", kinds: devServerOnly, before: `{spec: {port: 3000, instanceRef: {name: a}}}`, after: `{spec: {port: 3001}}`},
	{name: "a proxy enabled", kinds: devServerOnly, before: `{spec: {port: 3000}}`, after: `{spec: {proxy: Enabled}}`},
	{name: "a proxy disabled", kinds: devServerOnly, before: `{spec: {proxy: Enabled}}`, after: `{spec: {proxy: Disabled}}`},
}

func TestUpdate_AllowedAndRefusedTransitions(t *testing.T) {
	for _, tc := range transitions {
		for _, kind := range tc.kinds {
			t.Run(kind+" with "+tc.name, func(t *testing.T) {
				g := NewWithT(t)
				o := createObject(t, kind, tc.before)
				merge(o.Object, parse(t, tc.after))
				err := k8s.Update(t.Context(), o)
				if tc.message == "" {
					g.Expect(err).NotTo(HaveOccurred())
					return
				}
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
				g.Expect(err.Error()).To(ContainSubstring(tc.message))
			})
		}
	}
}

// createObject creates an object and deletes it at the end of the test.
func createObject(t *testing.T, kind, fragment string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, kind, "", fragment)
	o.SetGenerateName("t-")
	if err := k8s.Create(t.Context(), o); err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		// Do not use the context of the test: it is already canceled when cleanups run.
		if err := k8s.Delete(cleanupContext, o); err != nil {
			t.Errorf("delete %s: %v", o.GetName(), err)
		}
	})
	return o
}

// TestStatus_IsSeparateSubresource checks that a create does not write status, and that a write of status changes neither spec nor the generation.
func TestStatus_IsSeparateSubresource(t *testing.T) {
	for _, kind := range processKinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			o := createObject(t, kind, `{status: {incarnation: 7}}`)
			g.Expect(o.Object).NotTo(HaveKey("status"), "a create must not write status")
			g.Expect(o.GetGeneration()).To(Equal(int64(1)))

			merge(o.Object, parse(t, `{spec: {restartToken: x}, status: {incarnation: 7}}`))
			g.Expect(k8s.Status().Update(t.Context(), o)).To(Succeed())
			incarnation, _, err := unstructured.NestedInt64(o.Object, "status", "incarnation")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(incarnation).To(Equal(int64(7)))
			restarts, found, err := unstructured.NestedInt64(o.Object, "status", "restartCount")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(BeTrue(), "restartCount must be present, so that its column shows 0")
			g.Expect(restarts).To(BeZero())
			_, found, err = unstructured.NestedString(o.Object, "spec", "restartToken")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(BeFalse(), "a write of status must not touch spec")
			g.Expect(o.GetGeneration()).To(Equal(int64(1)))
		})
	}
}
