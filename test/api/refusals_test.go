// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusal is a manifest that the API server must refuse with a message that contains words. The manifest is the smallest object of each of the kinds with
// fragment merged into it.
type refusal struct {
	name     string
	kinds    []string
	fragment string
	words    string
}

var (
	every = []string{kindInstance, kindDevServer, kindLanguageServer}
	// work lists the kinds that are not in every; all lists all kinds.
	work               = []string{kindAction, kindDiscovery, kindPlan, kindStrategy, kindStrategyRun}
	all                = slices.Concat(every, work)
	programs           = append(slices.Clone(every), kindStrategy)
	servers            = []string{kindDevServer, kindLanguageServer, kindStrategy}
	instances          = []string{kindInstance}
	owned              = []string{kindDevServer, kindLanguageServer}
	devServerOnly      = []string{kindDevServer}
	languageServerOnly = []string{kindLanguageServer}
)

// refusals and transitions together violate each CEL rule of a spec at least once; TestEveryRuleIsTried checks this.
var refusals = []refusal{
	{
		name: "an empty program", kinds: programs,
		fragment: `{spec: {process: {command: [""]}}}`,
		words:    "the program, command[0], must not be empty",
	},
	{
		name: "a relative working directory", kinds: programs,
		fragment: `{spec: {process: {workingDir: src/app}}}`,
		words:    "workingDir must be an absolute path",
	},
	{
		name: "a variable with value and valueFrom", kinds: programs,
		fragment: `{spec: {process: {env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]}}}`,
		words:    "set value or valueFrom, not both",
	},
	{
		name: "a variable from a secret and a config map", kinds: programs,
		fragment: `{spec: {process: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: s, key: k}}}]}}}`,
		words:    "set exactly one of secretKeyRef and configMapKeyRef",
	},
	{
		name: "a variable from nowhere", kinds: programs,
		fragment: `{spec: {process: {env: [{name: A, valueFrom: {}}]}}}`,
		words:    "set exactly one of secretKeyRef and configMapKeyRef",
	},
	{
		name: "a variable twice", kinds: programs,
		fragment: `{spec: {process: {env: [{name: A, value: "1"}, {name: A, value: "2"}]}}}`,
		words:    "Duplicate value",
	},
	{
		name: "a back-off with initialSeconds above maxSeconds", kinds: every,
		fragment: `{spec: {backoff: {initialSeconds: 61}}}`,
		words:    "initialSeconds must not be greater than maxSeconds",
	},
	{
		name: "the runtime Tmux for a kind other than Instance", kinds: servers,
		fragment: `{spec: {runtime: {type: Tmux}}}`,
		words:    "type must be Host or Pod; only Instances support Tmux and Docker",
	},
	{
		name: "the runtime Docker for a kind other than Instance", kinds: servers,
		fragment: `{spec: {runtime: {type: Docker}}}`,
		words:    "type must be Host or Pod; only Instances support Tmux and Docker",
	},
	{
		name: "the runtime Pod without a Pod", kinds: programs,
		fragment: `{spec: {runtime: {type: Pod}}}`,
		words:    "pod is required if type is Pod, and not allowed otherwise",
	},
	{
		name: "a Pod on the host", kinds: programs,
		fragment: `{spec: {runtime: {type: Host, pod: {image: agent}}}}`,
		words:    "pod is required if type is Pod, and not allowed otherwise",
	},
	{
		name: "a Pod without an image", kinds: programs,
		fragment: `{spec: {runtime: {type: Pod, pod: {serviceAccountName: agent}}}}`,
		words:    "spec.runtime.pod.image",
	},
	{
		name: "a volume claim without a mount path", kinds: programs,
		fragment: `{spec: {runtime: {type: Pod, pod: {image: agent, volumeClaimTemplates: [{name: home, spec: {}}]}}}}`,
		words:    "spec.runtime.pod.volumeClaimTemplates[0].mountPath",
	},
	{
		name: "two volume claims with one name", kinds: programs,
		fragment: `{spec: {runtime: {type: Pod, pod: {image: agent, volumeClaimTemplates: [
			{name: home, mountPath: /a, spec: {}}, {name: home, mountPath: /b, spec: {}}]}}}}`,
		words: "Duplicate value",
	},
	{
		name: "a proxy for a Pod", kinds: devServerOnly,
		fragment: `{spec: {proxy: Enabled, runtime: {type: Pod, pod: {image: web}}}}`,
		words:    "proxy is not supported for Pods",
	},
	{
		name: "an exec probe for readiness in a Pod", kinds: devServerOnly,
		fragment: `{spec: {readiness: {exec: {command: [test]}}, runtime: {type: Pod, pod: {image: web}}}}`,
		words:    "exec probes are not supported for Pods",
	},
	{
		name: "an exec probe for liveness in a Pod", kinds: devServerOnly,
		fragment: `{spec: {liveness: {exec: {command: [test]}}, runtime: {type: Pod, pod: {image: web}}}}`,
		words:    "exec probes are not supported for Pods",
	},
	{
		name: "Docker without a container", kinds: instances,
		fragment: `{spec: {runtime: {type: Docker}}}`,
		words:    "docker is required if type is Docker, and not allowed otherwise",
	},
	{
		name: "Docker with neither image nor container", kinds: instances,
		fragment: `{spec: {runtime: {type: Docker, docker: {network: none}}}}`,
		words:    "set image to start a container, or container to adopt an existing one",
	},
	{
		name: "a container in tmux", kinds: instances,
		fragment: `{spec: {runtime: {type: Tmux, docker: {image: agent}}}}`,
		words:    "docker is required if type is Docker, and not allowed otherwise",
	},
	{
		name: "a session in Docker", kinds: instances,
		fragment: `{spec: {runtime: {type: Docker, docker: {image: agent}, tmux: {session: main}}}}`,
		words:    "tmux is only allowed if type is Tmux",
	},
	{
		name: "a session name that tmux would change", kinds: instances,
		fragment: `{spec: {runtime: {type: Tmux, tmux: {session: "a.b"}}}}`,
		words:    "tmux does not allow ':' and '.'",
	},
	{
		name: "a session name with a special meaning in tmux", kinds: instances,
		fragment: `{spec: {runtime: {type: Tmux, tmux: {session: "=main"}}}}`,
		words:    "which have a special meaning in tmux",
	},
	{
		name: "adoption of a host process", kinds: instances,
		fragment: `{spec: {adoption: IfExists}}`,
		words:    "adoption requires the runtime Tmux or Docker",
	},
	{
		name: "deletionPolicy Orphan without adoption", kinds: instances,
		fragment: `{spec: {deletionPolicy: Orphan, runtime: {type: Tmux}}}`,
		words:    "deletionPolicy Orphan requires adoption",
	},
	{
		name: "a container that may not be adopted", kinds: instances,
		fragment: `{spec: {runtime: {type: Docker, docker: {image: agent, container: agent-1}}}}`,
		words:    "names a container to adopt",
	},
	{
		name: "optional adoption without an image to start", kinds: instances,
		fragment: `{spec: {adoption: IfExists, runtime: {type: Docker, docker: {container: agent-1}}}}`,
		words:    "spec.runtime.docker.image is required unless spec.adoption is Required",
	},
	{
		name: "a field that does not exist", kinds: all,
		fragment: `{spec: {command: [sleep]}}`,
		words:    `unknown field "spec.command"`,
	},
	{
		name: "no program", kinds: programs,
		fragment: `{spec: {process: {command: null}}}`,
		words:    "spec.process.command: Required value",
	},
	{
		name: "a state of another kind", kinds: []string{kindInstance, kindDevServer},
		fragment: `{spec: {state: OnDemand}}`,
		words:    "only LanguageServers support the state OnDemand",
	},
	{
		name: "a host name with a port", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["dev.example.com:8080"]}}`,
		words:    "must be a DNS name in lower case without a port",
	},
	{
		name: "every host", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["*"]}}`,
		words:    "must be a DNS name in lower case without a port",
	},
	{
		name: "a host name with a control character", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["dev.example.com\n"]}}`,
		words:    "must be a DNS name in lower case without a port",
	},
	{
		name: "a relative folder", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: [/src, lib]}}}`,
		words:    "every folder must be an absolute path",
	},
	{
		name: "a folder twice", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: [/src, /src]}}}`,
		words:    "Duplicate value",
	},
	{
		name: "no folder", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: null}}}`,
		words:    "spec.workspace.folders: Required value",
	},
	{
		name: "no workspace", kinds: languageServerOnly,
		fragment: `{spec: {workspace: null}}`,
		words:    "spec.workspace: Required value",
	},
	{
		name: "no language", kinds: languageServerOnly,
		fragment: `{spec: {language: null}}`,
		words:    "spec.language: Required value",
	},
	{
		name: "a canary without a method", kinds: languageServerOnly,
		fragment: `{spec: {health: {canary: {params: {query: main}}}}}`,
		words:    "spec.health.canary.method: Required value",
	},
	{
		name: "a method twice", kinds: languageServerOnly,
		fragment: `{spec: {replayMethods: [my/method, my/method]}}`,
		words:    "Duplicate value",
	},
	{
		name: "an unknown field in the limits", kinds: languageServerOnly,
		fragment: `{spec: {limits: {bytes: 1}}}`,
		words:    `unknown field "spec.limits.bytes"`,
	},
	{
		name: "a URL path without a slash", kinds: devServerOnly,
		fragment: `{spec: {url: {path: app}}}`,
		words:    "path must begin with /",
	},
	{
		name: "a readiness path without a slash", kinds: devServerOnly,
		fragment: `{spec: {readiness: {httpGet: {path: healthz}}}}`,
		words:    "path must begin with /",
	},
	{
		name: "a readiness probe without a check", kinds: devServerOnly,
		fragment: `{spec: {readiness: {periodSeconds: 1}}}`,
		words:    "set exactly one of httpGet, tcpSocket and exec",
	},
	{
		name: "a liveness probe with two checks", kinds: devServerOnly,
		fragment: `{spec: {liveness: {httpGet: {}, tcpSocket: {}}}}`,
		words:    "set exactly one of httpGet, tcpSocket and exec",
	},
}

func init() {
	for _, name := range []string{
		"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH",
		"DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH",
	} {
		refusals = append(refusals, refusal{
			name: "the variable " + name, kinds: programs,
			fragment: `{spec: {process: {env: [{name: ` + name + `, value: x}]}}}`,
			words:    "this variable changes how every program is loaded and is refused",
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range refusals {
		for _, kind := range tc.kinds {
			t.Run(kind+" with "+tc.name, func(t *testing.T) {
				g := NewWithT(t)
				err := dryRun(t.Context(), object(t, kind, "refused", tc.fragment))
				g.Expect(err).To(HaveOccurred(), "the API server accepted it")
				g.Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), err.Error())
				g.Expect(err.Error()).To(ContainSubstring(tc.words))
			})
		}
	}
}

// TestEveryRuleIsTried fails if a CEL rule of a spec has no manifest that violates it.
func TestEveryRuleIsTried(t *testing.T) {
	for _, kind := range all {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			tried := make([]string, 0, len(refusals)+len(transitions))
			for _, tc := range refusals {
				tried = append(tried, tc.words)
			}
			for _, tc := range transitions {
				tried = append(tried, tc.words)
			}
			walk(specOf(t, kind), "spec", func(path string, schema schemaProps) {
				for _, rule := range schema.XValidations {
					g.Expect(coveredBy(rule.Message, tried)).To(BeTrue(), "%s: no manifest violates the rule %q", path, rule.Message)
				}
			})
		})
	}
}

func coveredBy(message string, tried []string) bool {
	for _, words := range tried {
		if words != "" && strings.Contains(message, words) {
			return true
		}
	}
	return false
}
