// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// strictParameters are restrictive parameters, with exceptions for the namespace team-a.
var strictParameters = map[string]string{
	"commands":           "# what we build with\n/usr/bin/npm\ngohello\n/opt/tools/*\nimage-entrypoint\n",
	"commands.team-a":    "*",
	"images":             "example/app\nexample/exact:1.2\nlocal*",
	"directories":        "/srv/agents\n/data/",
	"directories.team-a": "",
	"runtimes":           "Pod",
	"runtimes.team-a":    "Docker",
	"docker":             "network=dev*\nuser=1000",
}

// beRefusedBy matches the message of the policy that refused an object.
func beRefusedBy(policy, what string) gomegatypes.GomegaMatcher {
	return MatchError(And(ContainSubstring("ValidatingAdmissionPolicy 'berth-"+policy+"'"), ContainSubstring(what+" is not allowed in namespace")))
}

// policyCase is an object in a namespace, and the policy that must refuse the object. If policy is empty, the object must be admitted.
type policyCase struct{ namespace, kind, spec, policy, what string }

var policyCases = []policyCase{
	{"default", "Instance", `process: {command: [/bin/sh]}`, "commands", "the program /bin/sh"},
	{"default", "Instance", `process: {command: [gohello, /bin/sh]}`, "", ""},
	{"default", "Instance", `process: {command: [gohello], resumeCommand: [/bin/sh]}`, "commands", "the program /bin/sh"},
	{"default", "Instance", `process: {command: [gohello], resumeCommand: [/opt/tools/agent, --resume, /bin/sh]}`, "", ""},
	{"team-a", "Instance", `process: {command: [gohello], resumeCommand: [/bin/sh]}`, "", ""},
	{"default", "Instance", `process: {command: [gohello2]}`, "commands", "the program gohello2"},
	{"default", "Instance", `process: {command: ["# what we build with"]}`, "commands", "the program # what we build with"},
	{"default", "DevServer", `process: {command: [/opt/tools/serve]}`, "", ""},
	{"default", "DevServer", `process: {command: [/opt/tools/../sh]}`, "commands", "the program /opt/tools/../sh"},
	{"default", "DevServer", `process: {command: [/opt/tools/$(EVIL)]}`, "commands", "the program /opt/tools/$(EVIL)"},
	{"default", "DevServer", `{process: {command: [gohello]}, readiness: {exec: {command: [/bin/sh]}}}`, "commands", "the program /bin/sh"},
	{"default", "DevServer", `{process: {command: [gohello]}, liveness: {exec: {command: [/opt/tools/check]}}}`, "", ""},
	{"default", "Strategy", `process: {command: [/bin/sh]}`, "commands", "the program /bin/sh"},
	{"default", "Strategy", `process: {command: [gohello]}`, "", ""},
	{"team-a", "Instance", `process: {command: [/bin/sh]}`, "", ""},

	{"default", "Instance", `process: {command: [gohello], workingDir: /srv/agents}`, "", ""},
	{"default", "Instance", `process: {command: [gohello], workingDir: /srv/agents/a/b}`, "", ""},
	{"default", "Instance", `process: {command: [gohello], workingDir: /data/x}`, "", ""},
	{"default", "Instance", `process: {command: [gohello], workingDir: /srv/agentsx}`, "directories", "the directory /srv/agentsx"},
	{"default", "Instance", `process: {command: [gohello], workingDir: /srv/agents/../../etc}`, "directories", "the directory /srv/agents/../../etc"},
	{"default", "Instance", `process: {command: [gohello], workingDir: /srv/agents/..}`, "directories", "the directory /srv/agents/.."},
	{"default", "LanguageServer", `{language: go, workspace: {folders: [/srv/agents, /etc]}, process: {command: [gohello]}}`, "directories", "the directory /etc"},
	{"default", "LanguageServer", `{language: go, workspace: {folders: [/srv/agents]}, process: {command: [gohello]}}`, "", ""},
	{"default", "Strategy", `process: {command: [gohello], workingDir: /etc}`, "directories", "the directory /etc"},
	{"team-a", "Instance", `process: {command: [gohello], workingDir: /srv/agents}`, "directories", "the directory /srv/agents"},

	{"default", "Instance", `{process: {command: [gohello]}, runtime: {type: Host}}`, "runtimes", "the runtime Host"},
	{"default", "Strategy", `{process: {command: [gohello]}, runtime: {type: Host}}`, "runtimes", "the runtime Host"},
	{"machines", "Instance", `{process: {command: [gohello]}, runtime: {type: Host}}`, "", ""},
	{"team-a", "Instance", `{process: {command: [gohello]}, runtime: {type: Host}}`, "runtimes", "the runtime Host"},
}

func TestPolicies_RefuseAndAdmitObjects(t *testing.T) {
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	for _, c := range policyCases {
		t.Run(fmt.Sprintf("%s in %s: %s", c.kind, c.namespace, c.spec), func(t *testing.T) { expectCase(t, c) })
	}
}

// TestPolicies_ExistingObjectsCanBeStopped checks that an object that was created before its values were forbidden can be stopped and deleted, but cannot get
// another forbidden value.
func TestPolicies_ExistingObjectsCanBeStopped(t *testing.T) {
	g := NewWithT(t)
	createNamespaces(t)
	free := map[string]string{"commands": "*", "images": "*", "directories": "*", "runtimes": "*"}
	setParameters(t, free, policyCase{namespace: "default", kind: "Instance", spec: `{process: {command: [/bin/sh]}, runtime: {type: Host}}`})
	old := newObject(g, policyCase{namespace: "default", kind: "Instance", spec: `process: {command: [/bin/sh], workingDir: /etc}`})
	old.SetName("old")
	g.Eventually(func() error { return k8s.Create(t.Context(), old) }, patience, poll).Should(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), old))).To(Succeed()) })
	setParameters(t, strictParameters, policyCases[0])

	set := func(value string, fields ...string) error {
		changed := old.DeepCopy()
		g.Expect(unstructured.SetNestedField(changed.Object, value, fields...)).To(Succeed())
		return k8s.Patch(t.Context(), changed, client.MergeFrom(old))
	}
	for _, p := range []struct{ value, field, what string }{{"/usr", "workingDir", "the directory /usr"}} {
		g.Eventually(func() error { return set(p.value, "spec", "process", p.field) }, patience, poll).Should(beRefusedBy("directories", p.what))
	}
	g.Eventually(func() error { return set("Stopped", "spec", "state") }, patience, poll).Should(Succeed())
	g.Expect(k8s.Delete(t.Context(), old)).To(Succeed())
}

// TestPolicies_AdmitSamples checks that the initial parameters of an installation refuse the runtime Host, and admit the samples except those for Tmux and
// Docker.
func TestPolicies_AdmitSamples(t *testing.T) {
	g := NewWithT(t)
	setInitialParameters(t)
	files, err := filepath.Glob(filepath.Join(root, "config", "samples", "*", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	all, err := render(t.Context(), filepath.Join("config", "samples"))
	g.Expect(err).NotTo(HaveOccurred())
	count := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := parse(text)
		g.Expect(err).NotTo(HaveOccurred())
		count += len(objects)
		for _, o := range objects {
			admitted := Succeed()
			// These samples are for a manager on a single machine.
			if runtime := map[string]string{"docker": "Docker", "tmux": "Tmux"}[filepath.Base(filepath.Dir(file))]; runtime != "" {
				admitted = MatchError(ContainSubstring("the runtime " + runtime + " is not allowed in namespace default"))
			}
			g.Eventually(func() error { return apply(t.Context(), o.DeepCopy(), client.DryRunAll) }, patience, poll).Should(admitted, file)
		}
	}
	g.Expect(all).To(HaveLen(count), "config/samples/kustomization.yaml lists every sample")
}

// TestRuntimePolicy_ManagerOutsideCluster checks that an object without a runtime needs permission for the runtime Host if the manager runs outside the
// cluster.
func TestRuntimePolicy_ManagerOutsideCluster(t *testing.T) {
	g := NewWithT(t)
	setInitialParameters(t)
	unnamed := `{process: {command: [sh]}}`
	expectCase(t, policyCase{"default", "DevServer", unnamed, "", ""})
	policyOf := func(folder string) *unstructured.Unstructured {
		objects, err := render(t.Context(), filepath.Join("config", folder))
		g.Expect(err).NotTo(HaveOccurred())
		for _, o := range objects {
			if o.GetKind() == "ValidatingAdmissionPolicy" && o.GetName() == "berth-runtimes" {
				return o
			}
		}
		t.Fatalf("config/%s has no policy for runtimes", folder)
		return nil
	}
	inside := policyOf("default")
	g.Expect(apply(t.Context(), policyOf("outside"))).To(Succeed())
	t.Cleanup(func() { g.Expect(apply(context.Background(), inside)).To(Succeed()) })
	for _, c := range []policyCase{
		{"default", "DevServer", unnamed, "runtimes", "the runtime Host"},
		{"default", "Strategy", unnamed, "runtimes", "the runtime Host"},
		{"machines", "DevServer", unnamed, "", ""},
		{"default", "DevServer", `{process: {command: [sh]}, runtime: {type: Pod, pod: {image: local}}}`, "", ""},
	} {
		expectCase(t, c)
	}
}

// setInitialParameters sets the policy parameters that a new installation has.
func setInitialParameters(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	createNamespaces(t)
	objects, err := render(t.Context(), filepath.Join("config", "policy"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" {
			data, _, err := unstructured.NestedStringMap(o.Object, "data")
			g.Expect(err).NotTo(HaveOccurred())
			setParameters(t, data, policyCase{"default", "Instance", `{process: {command: [sh]}, runtime: {type: Host}}`, "runtimes", "the runtime Host"})
		}
	}
}

// TestImagePolicy_ImagesAndContainerCommands checks the policy for images, and the policy for commands as far as it concerns additional containers in a Pod.
func TestImagePolicy_ImagesAndContainerCommands(t *testing.T) {
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	spec := func(runtime string) string { return `{process: {command: [gohello]}, runtime: ` + runtime + `}` }
	for _, c := range []policyCase{
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/other:1"}}`), "images", "the image example/other:1"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/app:7"}}`), "", ""},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/app"}}`), "", ""},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/app@sha256:0123"}}`), "", ""},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/app:5000/evil"}}`), "images", "the image example/app:5000/evil"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/exact:1.2"}}`), "", ""},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "example/exact:1.3"}}`), "images", "the image example/exact:1.3"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: "local/anything"}}`), "", ""},
		{"default", "Instance", spec(`{type: Pod, pod: {image: local, template: {spec: {containers: [{name: a}, {name: b, image: evil}]}}}}`), "images", "the image evil"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: local, template: {spec: {initContainers: [{name: a, image: evil}]}}}}`), "images", "the image evil"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: local, template: {spec: {volumes: [{name: a}, {name: b, image: {reference: evil}}]}}}}`), "images", "the image evil"},
		{"default", "Instance", spec(`{type: Pod, pod: {image: local, volumes: [{name: a}, {name: b, image: {reference: evil}}]}}`), "images", "the image evil"},
		{"default", "Strategy", spec(`{type: Pod, pod: {image: evil}}`), "images", "the image evil"},
		{"default", "DevServer", spec(`{type: Pod, pod: {image: evil}}`), "images", "the image evil"},
		{"team-a", "Instance", spec(`{type: Docker, docker: {image: evil}}`), "images", "the image evil"},
		{"default", "Instance", `{process: {}, runtime: {type: Pod, pod: {image: evil}}}`, "images", "the image evil"},
		{"default", "Strategy", `{process: {}, runtime: {type: Pod, pod: {image: local}}}`, "", ""},
		{"default", "Instance", spec(podWithSidecar(`command: [/bin/sh]`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(podWithSidecar(`command: [gohello]`)), "", ""},
		{"default", "Instance", spec(podWithSidecar(`args: [/bin/sh, -c, evil]`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(podWithSidecar(`args: [--port=80]`)), "", ""},
		{"default", "Instance", spec(podWithSidecar(`args: [gohello]`)), "", ""},
		{"default", "Instance", spec(podWithSidecar(`lifecycle: {postStart: {exec: {command: [/bin/sh]}}}`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(podWithSidecar(`readinessProbe: {exec: {command: [/bin/sh]}}`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(`{type: Docker, docker: {image: local}}`), "runtimes", "the runtime Docker"},
	} {
		t.Run(c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestDirectoryPolicy_HostMounts checks which host directories containers and Pods can mount.
func TestDirectoryPolicy_HostMounts(t *testing.T) {
	createNamespaces(t)
	strictlyDocker := maps.Clone(strictParameters)
	strictlyDocker["runtimes"] = "Pod\nDocker"
	setParameters(t, strictlyDocker, policyCase{"default", "Instance", `{process: {command: [gohello]}, runtime: {type: Docker, docker: {image: local}}}`, "", ""})
	spec := func(runtime string) string { return `{process: {command: [gohello]}, runtime: ` + runtime + `}` }
	volume := func(path string) string {
		return `[{name: a, emptyDir: {}}, {name: b, hostPath: {path: ` + path + `}}]`
	}
	for _, c := range []policyCase{
		{"default", "Instance", spec(`{type: Docker, docker: {image: local, mounts: [{source: /srv/agents/x, target: /x}]}}`), "", ""},
		{"default", "Instance", spec(`{type: Docker, docker: {image: local, mounts: [{source: /srv/agents, target: /x}, {source: /etc, target: /y}]}}`), "directories", "the directory /etc"},
		{"default", "DevServer", spec(`{type: Pod, pod: {image: local, volumes: ` + volume("/srv/agents/x") + `}}`), "", ""},
		{"default", "DevServer", spec(`{type: Pod, pod: {image: local, volumes: ` + volume("/var/run") + `}}`), "directories", "the directory /var/run"},
		{"default", "Strategy", spec(`{type: Pod, pod: {image: local, template: {spec: {volumes: ` + volume("/") + `}}}}`), "directories", "the directory /"},
		{"default", "Strategy", spec(`{type: Pod, pod: {image: local, template: {spec: {volumes: [{name: c, hostPath: {type: Directory}}]}}}}`), "directories", "the directory /"},
	} {
		t.Run(c.spec, func(t *testing.T) { expectCase(t, c) })
	}
}

// TestDirectoryPolicy_MountAddedLater checks that the policies apply to a mount that is added to an existing object.
func TestDirectoryPolicy_MountAddedLater(t *testing.T) {
	g := NewWithT(t)
	createNamespaces(t)
	setParameters(t, strictParameters, policyCases[0])
	existing := newObject(g, policyCase{namespace: "default", kind: "DevServer", spec: `{process: {command: [gohello]}, runtime: {type: Pod, pod: {image: local}}}`})
	existing.SetName("there")
	g.Eventually(func() error { return k8s.Create(t.Context(), existing) }, patience, poll).Should(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), existing))).To(Succeed()) })
	changed := existing.DeepCopy()
	volumes := []any{map[string]any{"name": "a", "hostPath": map[string]any{"path": "/etc"}}}
	g.Expect(unstructured.SetNestedSlice(changed.Object, volumes, "spec", "runtime", "pod", "volumes")).To(Succeed())
	g.Expect(k8s.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)).To(beRefusedBy("directories", "the directory /etc"))
}

// podWithSidecar returns a Pod runtime with an additional container. words are more fields of this container.
func podWithSidecar(words string) string {
	return `{type: Pod, pod: {image: local, template: {spec: {containers: [{name: side, image: local, ` + words + `}]}}}}`
}

// expectCase waits until the API server admits or refuses the object as the case requires.
func expectCase(t *testing.T, c policyCase) {
	t.Helper()
	g := NewWithT(t)
	want := Succeed()
	if c.policy != "" {
		want = beRefusedBy(c.policy, c.what)
	}
	g.Eventually(func() error { return k8s.Create(t.Context(), newObject(g, c), client.DryRunAll) }, patience, poll).Should(want)
}

func newObject(g Gomega, c policyCase) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte("spec:\n  "+c.spec), &o.Object)).To(Succeed())
	o.SetAPIVersion("berth.dev/v1alpha1")
	o.SetKind(c.kind)
	o.SetNamespace(c.namespace)
	o.SetName("tried")
	return o
}

// setParameters sets the parameters of the policies and waits until the API server uses them. The parameter "seen" is a policy case that the API server decides
// differently under the previous parameters. setParameters waits until the API server decides this case as expected.
func setParameters(t *testing.T, data map[string]string, seen policyCase) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		config := &corev1.ConfigMap{}
		if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: "berth-system", Name: "berth-policy"}, config); err != nil {
			return err
		}
		config.Data = data
		return k8s.Update(t.Context(), config)
	}, patience, poll).Should(Succeed())
	expectCase(t, seen)
}

// createNamespaces creates the namespaces that the cases use.
func createNamespaces(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for name, labels := range map[string]map[string]string{"team-a": nil, "machines": {"berth.dev/allow-runtime": "Host"}} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		g.Expect(client.IgnoreAlreadyExists(k8s.Create(t.Context(), namespace))).To(Succeed())
	}
}

// outputBuffer collects the output of a program; it can be read concurrently.
type outputBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *outputBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *outputBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
