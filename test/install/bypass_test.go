// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/controllers/process"
)

// TestEnvironmentPolicy_RefusesBypassingVariables checks that the policies refuse environment variables that make a permitted program run other code or work in
// other directories. If the parameters limit neither the commands nor the directories of a namespace, the policies admit these variables.
func TestEnvironmentPolicy_RefusesBypassingVariables(t *testing.T) {
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	env := func(words string) string { return `process: {command: [gohello], env: [` + words + `]}` }
	pod := func(words string) string {
		return `{process: {command: [gohello]}, runtime: ` + podWithSidecar(`command: [gohello], `+words) + `}`
	}
	for _, c := range []policyCase{
		{"default", "Instance", env(`{name: HOME, value: /etc}`), "environment", "the variable HOME"},
		{"default", "DevServer", env(`{name: PORT_NAME, value: x}, {name: NODE_OPTIONS, value: --require=/tmp/evil.js}`), "environment", "the variable NODE_OPTIONS"},
		{"default", "Strategy", env(`{name: GCONV_PATH, value: /tmp}`), "environment", "the variable GCONV_PATH"},
		{"default", "Strategy", env(`{name: PATH, valueFrom: {secretKeyRef: {name: a, key: b}}}`), "environment", "the variable PATH"},
		{"default", "Instance", env(`{name: GIT_CONFIG_COUNT, value: "1"}`), "environment", "the variable GIT_CONFIG_COUNT"},
		{"default", "Instance", env(`{name: npm_config_script_shell, value: /tmp/evil}`), "environment", "the variable npm_config_script_shell"},
		{"default", "Instance", env(`{name: BROWSER, value: /tmp/evil}`), "environment", "the variable BROWSER"},
		{"default", "Instance", env(`{name: LESSOPEN, value: "|/tmp/evil %s"}`), "environment", "the variable LESSOPEN"},
		{"default", "Instance", env(`{name: KUBECONFIG, value: /tmp/evil}`), "environment", "the variable KUBECONFIG"},
		{"default", "DevServer", env(`{name: MAVEN_OPTS, value: "-javaagent:/tmp/evil.jar"}`), "environment", "the variable MAVEN_OPTS"},
		{"default", "DevServer", env(`{name: GRADLE_OPTS, value: "-javaagent:/tmp/evil.jar"}`), "environment", "the variable GRADLE_OPTS"},
		{"default", "Instance", pod(`env: [{name: LOG, value: debug}, {name: BROWSER, value: /tmp/evil}]`), "environment", "the variable BROWSER"},
		{"default", "Instance", env(`{name: MY_HOME, value: /etc}, {name: CCACHE, value: x}, {name: GIT_AUTHOR_NAME, value: x}`), "", ""},
		{"team-a", "Instance", env(`{name: HOME, value: /etc}`), "environment", "the variable HOME"}, // this namespace limits directories but not commands
		{"default", "Instance", pod(`env: [{name: LD_PRELOAD, value: /tmp/evil.so}]`), "environment", "the variable LD_PRELOAD"},
		{"default", "Instance", pod(`env: [{name: LOG, value: debug}]`), "", ""},
		{"default", "Instance", pod(`envFrom: [{secretRef: {name: a}}]`), "environment", "the source envFrom of a container"},
		{"default", "Instance", `process: {command: [gohello], envFrom: [{secretRef: {name: a}}]}`, "environment", "the source spec.process.envFrom"},
	} {
		t.Run(c.namespace+": "+c.spec, func(t *testing.T) { expectCase(t, c) })
	}

	free := maps.Clone(strictParameters)
	free["commands"], free["directories"] = "*", "*"
	setParameters(t, free, policyCase{"default", "Instance", env(`{name: HOME, value: /etc}`), "", ""})
	expectCase(t, policyCase{"default", "Instance", pod(`envFrom: [{secretRef: {name: a}}]`), "", ""})
	expectCase(t, policyCase{"default", "Instance", `process: {command: [gohello], envFrom: [{secretRef: {name: a}}]}`, "", ""})
}

// TestEnvironmentPolicy_AllowList checks the key environment: names that it does not list are refused, also where no command is limited, and an exact name permits a
// variable that is otherwise refused.
func TestEnvironmentPolicy_AllowList(t *testing.T) {
	createNamespaces(t)
	env := func(words string) string { return `process: {command: [gohello], env: [` + words + `]}` }
	listed := maps.Clone(freeParameters)
	listed["environment"] = "LOG\nAPP_*\nGIT_*"
	setParameters(t, listed, policyCase{"default", "Instance", env(`{name: OTHER, value: a}`), "environment", "the variable OTHER"})
	for _, c := range []policyCase{
		{"default", "Instance", env(`{name: LOG, value: a}, {name: APP_MODE, value: a}`), "", ""},
		{"default", "Instance", env(`{name: LOG, value: a}, {name: LOGS, value: a}`), "environment", "the variable LOGS"},
		{"default", "DevServer", env(`{name: GIT_DIR, value: a}`), "", ""},
		{"default", "Instance", `process: {command: [gohello], envFrom: [{secretRef: {name: a}}]}`, "environment", "the source spec.process.envFrom"},
		{"default", "Instance", `{process: {command: [gohello]}, runtime: ` + podWithSidecar(`env: [{name: OTHER, value: a}]`) + `}`, "environment", "the variable OTHER"},
		{"default", "Instance", `process: {command: [gohello]}`, "", ""},
	} {
		t.Run(c.namespace+": "+c.spec, func(t *testing.T) { expectCase(t, c) })
	}

	listed["commands"], listed["environment"], listed["environment.team-a"] = "gohello", "*\nHOME", "GIT_*\nPATH"
	setParameters(t, listed, policyCase{"default", "Instance", env(`{name: OTHER, value: a}, {name: HOME, value: a}`), "", ""})
	for _, c := range []policyCase{
		{"default", "Instance", env(`{name: PATH, value: a}`), "environment", "the variable PATH"},
		{"team-a", "Instance", env(`{name: PATH, value: a}, {name: GIT_AUTHOR_NAME, value: a}`), "", ""},
		{"team-a", "Instance", env(`{name: GIT_DIR, value: a}`), "environment", "the variable GIT_DIR"}, // a prefix does not permit it
		{"team-a", "Instance", env(`{name: HOME, value: a}`), "environment", "the variable HOME"},
	} {
		t.Run(c.namespace+": "+c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestEnvironmentPolicy_DocumentedVariables checks that docs/security.md lists exactly the variables that the policy refuses where commands are limited.
func TestEnvironmentPolicy_DocumentedVariables(t *testing.T) {
	g := NewWithT(t)
	policy, err := os.ReadFile(filepath.Join(root, "config", "policy", "environment.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	_, text, found := strings.Cut(string(policy), "- name: unsafe\n    expression: >-\n")
	g.Expect(found).To(BeTrue())
	text, _, _ = strings.Cut(text, "  - name:")
	pattern := strings.NewReplacer(`"`, "", " ", "", "+", "", "\n", "").Replace(text)
	refused := strings.Split(strings.TrimSuffix(strings.TrimPrefix(pattern, "^("), ")$"), "|")
	for i, name := range refused {
		refused[i] = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(name, "(?i:"), ")"), ".*", "*")
	}

	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(page), "These variables are refused:\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\nNo list of such variables is complete")
	var documented []string
	for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(section, -1) {
		documented = append(documented, name[1])
	}
	g.Expect(documented).To(ConsistOf(refused))
}

// TestSettingsPolicy_RefusesUnlistedSettings checks that a LanguageServer cannot use its settings to start programs that the policy for commands does not permit.
func TestSettingsPolicy_RefusesUnlistedSettings(t *testing.T) {
	createNamespaces(t)
	limited := maps.Clone(freeParameters)
	limited["commands"], limited["settings.team-a"] = "gopls", "# read by reviewers\ngopls\neditor*\nworkspace/executeCommand"
	server := func(words string) string {
		return `{language: go, workspace: {folders: [/src]}, process: {command: [gopls]}` + words + `}`
	}
	setParameters(t, limited, policyCase{"default", "LanguageServer", server(`, settings: {gopls: {}}`), "settings", "the setting gopls"})
	for _, c := range []policyCase{
		{"default", "LanguageServer", server(``), "", ""},
		{"default", "LanguageServer", server(`, settings: {}`), "", ""},
		{"default", "LanguageServer", server(`, settings: {rust-analyzer: {check: {overrideCommand: [evil]}}}`), "settings", "the setting rust-analyzer"},
		{"default", "LanguageServer", server(`, initializationOptions: {check: {overrideCommand: [evil]}}`), "settings", "the setting check"},
		{"default", "LanguageServer", server(`, health: {canary: {method: workspace/executeCommand, params: {command: evil}}}`), "settings", "the setting workspace/executeCommand"},
		{"default", "LanguageServer", server(`, health: {canary: {method: workspace/symbol, params: {query: a}}}`), "", ""},
		{"team-a", "LanguageServer", server(`, settings: {gopls: {buildFlags: [a]}}, initializationOptions: {editorName: a}`), "", ""},
		{"team-a", "LanguageServer", server(`, settings: {gopls: {}, clangd: {}}`), "settings", "the setting clangd"},
		{"team-a", "LanguageServer", server(`, health: {canary: {method: workspace/executeCommand, params: {command: a}}}`), "", ""},
	} {
		t.Run(c.namespace+": "+c.spec, func(t *testing.T) { expectCase(t, c) })
	}
	setParameters(t, freeParameters, policyCase{"default", "LanguageServer", server(`, settings: {rust-analyzer: {}}, initializationOptions: {check: {}}`), "", ""})
}

// TestVolumePolicy_ProtectsBerthVolumes checks that no spec can replace or mount a volume that Berth adds to the Pod of a language server.
func TestVolumePolicy_ProtectsBerthVolumes(t *testing.T) {
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	pod := func(words string) string {
		return `{language: go, workspace: {folders: [/srv/agents]}, process: {command: [gohello]}, runtime: {type: Pod, pod: {image: local, ` + words + `}}}`
	}
	for _, c := range []policyCase{
		{"default", "LanguageServer", pod(`template: {spec: {volumes: [{name: berth-keys, secret: {secretName: a}}]}}`), "volumes", "the volume berth-keys"},
		{"default", "LanguageServer", pod(`template: {spec: {initContainers: [{name: a, command: [gohello], volumeMounts: [{name: berth-keys, mountPath: /k}]}]}}`),
			"volumes", "the volume berth-keys"},
		{"default", "LanguageServer", pod(`volumes: [{name: berth-program, emptyDir: {}}]`), "volumes", "the volume berth-program"},
		{"default", "LanguageServer", pod(`volumeMounts: [{name: berth-keys, mountPath: /k}]`), "volumes", "the volume berth-keys"},
		{"default", "LanguageServer", pod(`volumes: [{name: mine, emptyDir: {}}], volumeMounts: [{name: mine, mountPath: /k}]`), "", ""},
	} {
		t.Run(c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestCommandPolicy_ImageEntrypointNeedsPermission checks that an object or a container without a command needs the entry image-entrypoint in the list of
// commands. It runs the entrypoint of its image, which the API server does not know.
func TestCommandPolicy_ImageEntrypointNeedsPermission(t *testing.T) {
	createNamespaces(t)
	without := maps.Clone(strictParameters)
	without["commands"] = "gohello"
	spec := func(words string) string {
		return `{process: {command: [gohello]}, runtime: ` + podWithSidecar(words) + `}`
	}
	g := NewWithT(t)
	bare := policyCase{"default", "Instance", `{process: {}, runtime: {type: Pod, pod: {image: local}}}`, "", ""}
	setParameters(t, strictParameters, bare)
	existing := newObject(g, bare)
	existing.SetName("bare")
	g.Eventually(func() error { return k8s.Create(t.Context(), existing) }, patience, poll).Should(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), existing))).To(Succeed()) })
	setParameters(t, without, policyCase{"default", "Instance", spec(`args: [--port=80]`), "commands", "the program image-entrypoint"})
	bare.policy, bare.what = "commands", "the program image-entrypoint"
	expectCase(t, bare)
	for patch, matches := range map[string]gomegatypes.GomegaMatcher{
		`{"spec": {"runtime": {"pod": {"image": "local/other"}}}}`: beRefusedBy("commands", "the program image-entrypoint"), // another image, another program
		`{"spec": {"process": {"command": ["evil"]}}}`:             beRefusedBy("commands", "the program evil"),
		`{"spec": {"process": {"command": ["gohello"]}}}`:          Succeed(),
		`{"spec": {"state": "Stopped"}}`:                           Succeed(),
	} {
		err := k8s.Patch(t.Context(), existing.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		g.Expect(err).To(matches, patch)
	}
	expectCase(t, policyCase{"default", "Instance", spec(`command: [gohello]`), "", ""})
	expectCase(t, policyCase{"default", "Instance", `{process: {command: [gohello]}, runtime: {type: Pod, pod: {image: local, template: {spec: {containers: [{name: main, tty: true}]}}}}}`, "", ""})
}

// TestDockerPolicy_RefusesNetworksAndUsers checks which networks and users the policy admits for a Docker container.
func TestDockerPolicy_RefusesNetworksAndUsers(t *testing.T) {
	createNamespaces(t)
	docker := maps.Clone(strictParameters)
	docker["runtimes"] = "Docker"
	spec := func(words string) string {
		return `{process: {command: [gohello]}, runtime: {type: Docker, docker: {image: local` + words + `}}}`
	}
	setParameters(t, docker, policyCase{"default", "Instance", spec(""), "", ""})
	for _, c := range []policyCase{
		{"default", "Instance", spec(`, network: host`), "docker", "the container option network=host"},
		{"default", "Instance", spec(`, network: dev-net`), "", ""},
		{"default", "Instance", spec(`, user: root`), "docker", "the container option user=root"},
		{"default", "Instance", spec(`, network: dev, user: "0:0"`), "docker", "the container option user=0:0"},
		{"default", "Instance", spec(`, user: "1000"`), "", ""},
	} {
		t.Run(c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestAdoptionPolicy_RefusesSessionsAndContainers checks what an Instance may adopt. By default it may adopt nothing.
func TestAdoptionPolicy_RefusesSessionsAndContainers(t *testing.T) {
	createNamespaces(t)
	id := strings.Repeat("a1", 32)
	tmux := func(words string) string {
		return `{process: {command: [gohello]}, adoption: Required, runtime: {type: Tmux` + words + `}}`
	}
	docker := func(name string) string {
		return `{process: {command: [gohello]}, adoption: Required, deletionPolicy: Terminate, runtime: {type: Docker, docker: {container: ` + name + `}}}`
	}
	parameters := maps.Clone(strictParameters)
	parameters["runtimes"], parameters["runtimes.team-a"] = "Tmux\nDocker", "*"
	setParameters(t, parameters, policyCase{"default", "Instance", docker("production-db"), "adoption", "the adoption of docker:production-db"})
	expectCase(t, policyCase{"default", "Instance", tmux(`, tmux: {session: work, socket: default}`), "adoption", "the adoption of tmux:default/work"})
	expectCase(t, policyCase{"default", "Instance", `{process: {command: [gohello]}, runtime: {type: Tmux, tmux: {session: work}}}`, "", ""})

	parameters["adoption"] = "# agents\ntmux:default/work\ntmux:berth/tri*\ndocker:a*"
	parameters["adoption.team-a"] = "docker:*\ntmux:berth/team-a/*"
	setParameters(t, parameters, policyCase{"default", "Instance", docker("agent-1"), "", ""})
	for _, c := range []policyCase{
		{"default", "Instance", docker("production-db"), "adoption", "the adoption of docker:production-db"},
		{"default", "Instance", docker(id), "adoption", "the adoption of docker:" + id},
		{"default", "Instance", docker(id[:12]), "adoption", "the adoption of docker:" + id[:12]},
		{"team-a", "Instance", docker(id), "", ""},
		{"default", "Instance", tmux(`, tmux: {session: work, socket: default}`), "", ""},
		{"default", "Instance", tmux(`, tmux: {session: work}`), "adoption", "the adoption of tmux:berth/work"},
		{"default", "Instance", tmux(`, tmux: {socket: default}`), "adoption", "the adoption of tmux:default/tried"},
		{"default", "Instance", tmux(``), "", ""},
		{"team-a", "Instance", tmux(``), "", ""},
		{"team-a", "Instance", tmux(`, tmux: {session: work}`), "adoption", "the adoption of tmux:berth/work"},
	} {
		t.Run(c.namespace+c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestRuntimePolicy_ForbiddenRuntimeAllowsOnlyStop checks that an object whose runtime was forbidden after the creation of the object can be stopped, but
// cannot get another command, directory, environment or probe command.
func TestRuntimePolicy_ForbiddenRuntimeAllowsOnlyStop(t *testing.T) {
	g := NewWithT(t)
	createNamespaces(t)
	free := map[string]string{"commands": "*", "images": "*", "directories": "*", "runtimes": "*", "docker": "*"}
	server := `{process: {command: [gohello]}, runtime: {type: Host}, readiness: {exec: {command: [gohello]}}}`
	setParameters(t, free, policyCase{"default", "DevServer", server, "", ""})
	existing := newObject(g, policyCase{namespace: "default", kind: "DevServer", spec: server})
	existing.SetName("permitted-before")
	g.Expect(k8s.Create(t.Context(), existing)).To(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), existing))).To(Succeed()) })
	free["runtimes"] = "Pod"
	setParameters(t, free, policyCase{"default", "DevServer", server, "runtimes", "the runtime Host"})

	set := func(value any, fields ...string) error {
		changed := existing.DeepCopy()
		g.Expect(unstructured.SetNestedField(changed.Object, value, fields...)).To(Succeed())
		return k8s.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
	}
	for _, c := range []struct {
		value   any
		fields  []string
		matches gomegatypes.GomegaMatcher
	}{
		{[]any{"evil"}, []string{"process", "command"}, beRefusedBy("runtimes", "the runtime Host")},
		{[]any{"gohello", "evil"}, []string{"process", "command"}, beRefusedBy("runtimes", "the runtime Host")},
		{"/etc", []string{"process", "workingDir"}, beRefusedBy("runtimes", "the runtime Host")},
		{[]any{map[string]any{"name": "A", "value": "b"}}, []string{"process", "env"}, beRefusedBy("runtimes", "the runtime Host")},
		{[]any{"evil"}, []string{"readiness", "exec", "command"}, beRefusedBy("runtimes", "the runtime Host")},
		{"Stopped", []string{"state"}, Succeed()},
		{int64(5), []string{"process", "stop", "gracePeriodSeconds"}, Succeed()},
	} {
		g.Expect(set(c.value, append([]string{"spec"}, c.fields...)...)).To(c.matches, "%v", c.fields)
	}
	g.Expect(k8s.Delete(t.Context(), existing)).To(Succeed())
}

// TestRuntimePolicy_ForbiddenRuntimeRefusesResumeCommand checks that an Instance whose runtime was forbidden after its creation cannot get another resumeCommand,
// which its next start would run.
func TestRuntimePolicy_ForbiddenRuntimeRefusesResumeCommand(t *testing.T) {
	g := NewWithT(t)
	createNamespaces(t)
	free := map[string]string{"commands": "*", "images": "*", "directories": "*", "runtimes": "*", "docker": "*"}
	agent := policyCase{"default", "Instance", `{process: {command: [gohello], resumeCommand: [gohello, again]}, runtime: {type: Host}}`, "", ""}
	setParameters(t, free, agent)
	existing := newObject(g, agent)
	existing.SetName("permitted-before")
	g.Expect(k8s.Create(t.Context(), existing)).To(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), existing))).To(Succeed()) })
	free["runtimes"], agent.policy, agent.what = "Pod", "runtimes", "the runtime Host"
	setParameters(t, free, agent)
	for _, program := range []string{"evil", "gohello"} {
		changed := existing.DeepCopy()
		g.Expect(unstructured.SetNestedStringSlice(changed.Object, []string{program}, "spec", "process", "resumeCommand")).To(Succeed())
		g.Expect(k8s.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)).To(beRefusedBy("runtimes", "the runtime Host"))
	}
}

// TestManagerRoles_ReadPolicyParametersOnly checks that the account of the manager can watch the Namespaces and the ConfigMap that determine which programs it
// may run, but cannot read other ConfigMaps.
func TestManagerRoles_ReadPolicyParametersOnly(t *testing.T) {
	g := NewWithT(t)
	manager := asAccount(t, insideAccount)
	parameters := []client.ListOption{client.InNamespace("berth-system"), client.MatchingFields{"metadata.name": process.PolicyConfigMap}}
	for _, c := range []struct {
		list    client.ObjectList
		options []client.ListOption
	}{{&corev1.NamespaceList{}, nil}, {&corev1.ConfigMapList{}, parameters}} {
		g.Eventually(func() error { return manager.List(t.Context(), c.list, c.options...) }, patience, poll).Should(Succeed())
		watching, err := manager.Watch(t.Context(), c.list, c.options...)
		g.Expect(err).NotTo(HaveOccurred())
		watching.Stop()
	}
	g.Expect(manager.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace("berth-system"))).NotTo(Succeed(), "the manager must not read other ConfigMaps")
}
