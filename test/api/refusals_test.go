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

// refusal is a manifest that the API server must refuse with an error that contains message. For each of the kinds, the manifest is the smallest valid object
// with fragment merged into it.
type refusal struct {
	name     string
	kinds    []string
	fragment string
	message  string
}

var (
	processKinds = []string{kindInstance, kindDevServer, kindLanguageServer}
	// otherKinds lists the kinds that are not in processKinds.
	otherKinds         = []string{kindAction, kindDiscovery, kindPlan, kindStrategy, kindStrategyRun}
	allKinds           = slices.Concat(processKinds, otherKinds)
	kindsWithProgram   = append(slices.Clone(processKinds), kindStrategy)
	serverKinds        = []string{kindDevServer, kindLanguageServer, kindStrategy}
	instanceOnly       = []string{kindInstance}
	ownedKinds         = []string{kindDevServer, kindLanguageServer}
	devServerOnly      = []string{kindDevServer}
	languageServerOnly = []string{kindLanguageServer}
)

// refusals and transitions together violate each CEL rule of a spec at least once; TestValidation_EveryRuleHasTestCase checks this.
var refusals = []refusal{
	{
		name: "an empty program", kinds: kindsWithProgram,
		fragment: `{spec: {process: {command: [""]}}}`,
		message:  "the program, command[0], must not be empty",
	},
	{
		name: "a relative working directory", kinds: kindsWithProgram,
		fragment: `{spec: {process: {workingDir: src/app}}}`,
		message:  "workingDir must be an absolute path",
	},
	{
		name: "a resumeCommand for a kind without sessions", kinds: serverKinds,
		fragment: `{spec: {process: {resumeCommand: [agent, --resume]}}}`,
		message:  "only Instances support resumeCommand; remove process.resumeCommand",
	},
	{
		name: "a resumeCommand with an empty program", kinds: []string{kindInstance},
		fragment: `{spec: {process: {resumeCommand: ["", --resume]}}}`,
		message:  "the program, resumeCommand[0], must not be empty",
	},
	{
		name: "a variable with value and valueFrom", kinds: kindsWithProgram,
		fragment: `{spec: {process: {env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]}}}`,
		message:  "set value or valueFrom, not both",
	},
	{
		name: "a variable from a secret and a config map", kinds: kindsWithProgram,
		fragment: `{spec: {process: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: s, key: k}}}]}}}`,
		message:  "set exactly one of secretKeyRef and configMapKeyRef",
	},
	{
		name: "a source that is a secret and a config map", kinds: kindsWithProgram,
		fragment: `{spec: {process: {envFrom: [{secretRef: {name: s}, configMapRef: {name: s}}]}}}`,
		message:  "set exactly one of secretRef and configMapRef",
	},
	{
		name: "a source without a name", kinds: kindsWithProgram,
		fragment: `{spec: {process: {envFrom: [{prefix: A_}]}}}`,
		message:  "set exactly one of secretRef and configMapRef",
	},
	{
		name: "a variable with an empty valueFrom", kinds: kindsWithProgram,
		fragment: `{spec: {process: {env: [{name: A, valueFrom: {}}]}}}`,
		message:  "set exactly one of secretKeyRef and configMapKeyRef",
	},
	{
		name: "a variable twice", kinds: kindsWithProgram,
		fragment: `{spec: {process: {env: [{name: A, value: "1"}, {name: A, value: "2"}]}}}`,
		message:  "Duplicate value",
	},
	{
		name: "a back-off with initialSeconds above maxSeconds", kinds: processKinds,
		fragment: `{spec: {backoff: {initialSeconds: 61}}}`,
		message:  "initialSeconds must not be greater than maxSeconds",
	},
	{
		name: "the runtime Tmux for a kind other than Instance", kinds: serverKinds,
		fragment: `{spec: {runtime: {type: Tmux}}}`,
		message:  "type must be Host or Pod; only Instances support Tmux and Docker",
	},
	{
		name: "the runtime Docker for a kind other than Instance", kinds: serverKinds,
		fragment: `{spec: {runtime: {type: Docker}}}`,
		message:  "type must be Host or Pod; only Instances support Tmux and Docker",
	},
	{
		name: "the runtime Pod without pod settings", kinds: kindsWithProgram,
		fragment: `{spec: {runtime: {type: Pod}}}`,
		message:  "pod is required if type is Pod, and not allowed otherwise",
	},
	{
		name: "pod settings with the runtime Host", kinds: kindsWithProgram,
		fragment: `{spec: {runtime: {type: Host, pod: {image: agent}}}}`,
		message:  "pod is required if type is Pod, and not allowed otherwise",
	},
	{
		name: "a Pod without an image", kinds: kindsWithProgram,
		fragment: `{spec: {runtime: {type: Pod, pod: {serviceAccountName: agent}}}}`,
		message:  "spec.runtime.pod.image",
	},
	{
		name: "a volume claim without a mount path", kinds: kindsWithProgram,
		fragment: `{spec: {runtime: {type: Pod, pod: {image: agent, volumeClaimTemplates: [{name: home, spec: {}}]}}}}`,
		message:  "spec.runtime.pod.volumeClaimTemplates[0].mountPath",
	},
	{
		name: "two volume claims with one name", kinds: kindsWithProgram,
		fragment: `{spec: {runtime: {type: Pod, pod: {image: agent, volumeClaimTemplates: [
			{name: home, mountPath: /a, spec: {}}, {name: home, mountPath: /b, spec: {}}]}}}}`,
		message: "Duplicate value",
	},
	{
		name: "a proxy for a Pod", kinds: devServerOnly,
		fragment: `{spec: {proxy: Enabled, runtime: {type: Pod, pod: {image: web}}}}`,
		message:  "proxy is not supported for Pods",
	},
	{
		name: "an exec probe for readiness in a Pod", kinds: devServerOnly,
		fragment: `{spec: {readiness: {exec: {command: [test]}}, runtime: {type: Pod, pod: {image: web}}}}`,
		message:  "exec probes are not supported for Pods",
	},
	{
		name: "an exec probe for liveness in a Pod", kinds: devServerOnly,
		fragment: `{spec: {liveness: {exec: {command: [test]}}, runtime: {type: Pod, pod: {image: web}}}}`,
		message:  "exec probes are not supported for Pods",
	},
	{
		name: "the runtime Docker without docker settings", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Docker}}}`,
		message:  "docker is required if type is Docker, and not allowed otherwise",
	},
	{
		name: "Docker with neither image nor container", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Docker, docker: {network: none}}}}`,
		message:  "set image to start a container, or container to adopt an existing one",
	},
	{
		name: "docker settings with the runtime Tmux", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Tmux, docker: {image: agent}}}}`,
		message:  "docker is required if type is Docker, and not allowed otherwise",
	},
	{
		name: "tmux settings with the runtime Docker", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Docker, docker: {image: agent}, tmux: {session: main}}}}`,
		message:  "tmux is only allowed if type is Tmux",
	},
	{
		name: "a session name that tmux would change", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Tmux, tmux: {session: "a.b"}}}}`,
		message:  "tmux does not allow ':' and '.'",
	},
	{
		name: "a session name with a special meaning in tmux", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Tmux, tmux: {session: "=main"}}}}`,
		message:  "which have a special meaning in tmux",
	},
	{
		name: "adoption of a host process", kinds: instanceOnly,
		fragment: `{spec: {adoption: IfExists}}`,
		message:  "adoption requires the runtime Tmux or Docker",
	},
	{
		name: "deletionPolicy Orphan without adoption", kinds: instanceOnly,
		fragment: `{spec: {deletionPolicy: Orphan, runtime: {type: Tmux}}}`,
		message:  "deletionPolicy Orphan requires adoption",
	},
	{
		name: "a container to adopt without permission to adopt", kinds: instanceOnly,
		fragment: `{spec: {runtime: {type: Docker, docker: {image: agent, container: agent-1}}}}`,
		message:  "names a container to adopt",
	},
	{
		name: "optional adoption without an image to start", kinds: instanceOnly,
		fragment: `{spec: {adoption: IfExists, runtime: {type: Docker, docker: {container: agent-1}}}}`,
		message:  "spec.runtime.docker.image is required unless spec.adoption is Required",
	},
	{
		name: "a field that does not exist", kinds: allKinds,
		fragment: `{spec: {command: [sleep]}}`,
		message:  `unknown field "spec.command"`,
	},
	{
		name: "no command and no runtime", kinds: []string{kindDevServer, kindStrategy},
		fragment: `{spec: {process: {command: null}}}`,
		message:  "command is required unless runtime.pod.image names an image whose entrypoint runs instead",
	},
	{
		name: "no command and no runtime", kinds: instanceOnly,
		fragment: `{spec: {process: {command: null}}}`,
		message:  "command is required unless runtime.pod.image or runtime.docker.image names an image whose entrypoint runs instead",
	},
	{
		name: "no command on a machine", kinds: kindsWithProgram,
		fragment: `{spec: {process: {command: null}, runtime: {type: Host}}}`,
		message:  "spec.process.command: Required value: command is required",
	},
	{
		name: "no command in a tmux session", kinds: instanceOnly,
		fragment: `{spec: {process: {command: null}, runtime: {type: Tmux}}}`,
		message:  "spec.process.command: Required value: command is required",
	},
	{
		name: "no command for a container to adopt", kinds: instanceOnly,
		fragment: `{spec: {process: {command: null}, adoption: Required, runtime: {type: Docker, docker: {container: agent-1}}}}`,
		message:  "spec.process.command: Required value: command is required",
	},
	{
		name: "no command in a Pod", kinds: languageServerOnly,
		fragment: `{spec: {process: {command: null}, runtime: {type: Pod, pod: {image: gopls}}}}`,
		message:  "command is required, also in a Pod, because the multiplexer of a LanguageServer starts the server",
	},
	{
		name: "the state OnDemand", kinds: []string{kindInstance, kindDevServer},
		fragment: `{spec: {state: OnDemand}}`,
		message:  "only LanguageServers support the state OnDemand",
	},
	{
		name: "a host name with a port", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["dev.example.com:8080"]}}`,
		message:  "must be a DNS name in lower case without a port",
	},
	{
		name: "a wildcard for all hosts", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["*"]}}`,
		message:  "must be a DNS name in lower case without a port",
	},
	{
		name: "a host name with a control character", kinds: devServerOnly,
		fragment: `{spec: {allowedHosts: ["dev.example.com\n"]}}`,
		message:  "must be a DNS name in lower case without a port",
	},
	{
		name: "a relative folder", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: [/src, lib]}}}`,
		message:  "every folder must be an absolute path",
	},
	{
		name: "a folder twice", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: [/src, /src]}}}`,
		message:  "Duplicate value",
	},
	{
		name: "no folder", kinds: languageServerOnly,
		fragment: `{spec: {workspace: {folders: null}}}`,
		message:  "spec.workspace.folders: Required value",
	},
	{
		name: "no workspace", kinds: languageServerOnly,
		fragment: `{spec: {workspace: null}}`,
		message:  "spec.workspace: Required value",
	},
	{
		name: "no language", kinds: languageServerOnly,
		fragment: `{spec: {language: null}}`,
		message:  "spec.language: Required value",
	},
	{
		name: "a header limit that is too large", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxHeaderSize: 65Ki}}}`,
		message:  "must be between 256 and 64Ki",
	},
	{
		name: "a message limit that is too small", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxMessageSize: 4095}}}`,
		message:  "must be between 4Ki and 1Gi",
	},
	{
		name: "a client message limit that is too large", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxClientMessageSize: 2Gi}}}`,
		message:  "must be between 4Ki and 1Gi",
	},
	{
		name: "a documents limit that is too small", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxDocumentsSize: 1Ki}}}`,
		message:  "must be between 4Ki and 1Gi",
	},
	{
		name: "a queue limit that is too large", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxQueueSize: 1025Mi}}}`,
		message:  "must be between 4Ki and 1Gi",
	},
	{
		name: "a memory limit that is too small", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxMemory: 15Mi}}}`,
		message:  "must be between 16Mi and 1Ti",
	},
	{
		name: "a limit for waiting requests that is too large", kinds: languageServerOnly,
		fragment: `{spec: {hold: {maxSize: 1Ti}}}`,
		message:  "must be between 4Ki and 1Gi",
	},
	{
		name: "a size that is not a quantity", kinds: languageServerOnly,
		fragment: `{spec: {limits: {maxMemory: much}}}`,
		message:  "spec.limits.maxMemory",
	},
	{
		name: "a canary without a method", kinds: languageServerOnly,
		fragment: `{spec: {health: {canary: {params: {query: main}}}}}`,
		message:  "spec.health.canary.method: Required value",
	},
	{
		name: "a method twice", kinds: languageServerOnly,
		fragment: `{spec: {replayMethods: [my/method, my/method]}}`,
		message:  "Duplicate value",
	},
	{
		name: "an unknown field in the limits", kinds: languageServerOnly,
		fragment: `{spec: {limits: {bytes: 1}}}`,
		message:  `unknown field "spec.limits.bytes"`,
	},
	{
		name: "a URL path without a slash", kinds: devServerOnly,
		fragment: `{spec: {url: {path: app}}}`,
		message:  "path must begin with /",
	},
	{
		name: "a readiness path without a slash", kinds: devServerOnly,
		fragment: `{spec: {readiness: {httpGet: {path: healthz}}}}`,
		message:  "path must begin with /",
	},
	{
		name: "a readiness probe without a check", kinds: devServerOnly,
		fragment: `{spec: {readiness: {periodSeconds: 1}}}`,
		message:  "set exactly one of httpGet, tcpSocket and exec",
	},
	{
		name: "a liveness probe with two checks", kinds: devServerOnly,
		fragment: `{spec: {liveness: {httpGet: {}, tcpSocket: {}}}}`,
		message:  "set exactly one of httpGet, tcpSocket and exec",
	},
}

func init() {
	for _, name := range []string{
		"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH",
		"DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH",
	} {
		refusals = append(refusals, refusal{
			name: "the variable " + name, kinds: kindsWithProgram,
			fragment: `{spec: {process: {env: [{name: ` + name + `, value: x}]}}}`,
			message:  "this variable is not permitted, because it changes how every program is loaded",
		})
	}
}

func TestValidation_RefusesInvalidSpecs(t *testing.T) {
	for _, tc := range refusals {
		for _, kind := range tc.kinds {
			t.Run(kind+" with "+tc.name, func(t *testing.T) {
				g := NewWithT(t)
				err := dryRun(t.Context(), object(t, kind, "refused", tc.fragment))
				g.Expect(err).To(HaveOccurred(), "the API server accepted it")
				g.Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), err.Error())
				g.Expect(err.Error()).To(ContainSubstring(tc.message))
			})
		}
	}
}

// TestValidation_EveryRuleHasTestCase fails if a CEL rule of a spec has no manifest that violates it.
func TestValidation_EveryRuleHasTestCase(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			tried := make([]string, 0, len(refusals)+len(transitions))
			for _, tc := range refusals {
				tried = append(tried, tc.message)
			}
			for _, tc := range transitions {
				tried = append(tried, tc.message)
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
