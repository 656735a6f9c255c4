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

// strictly are restrictive parameters, with exceptions for the namespace team-a.
var strictly = map[string]string{
	"commands":           "# what we build with\n/usr/bin/npm\ngohello\n/opt/tools/*\nimage-entrypoint\n",
	"commands.team-a":    "*",
	"images":             "example/app\nexample/exact:1.2\nlocal*",
	"directories":        "/srv/agents\n/data/",
	"directories.team-a": "",
	"runtimes":           "Pod",
	"runtimes.team-a":    "Docker",
	"docker":             "network=dev*\nuser=1000",
}

// refusal matches the message of the policy that refused an object.
func refusal(policy, what string) gomegatypes.GomegaMatcher {
	return MatchError(And(ContainSubstring("ValidatingAdmissionPolicy 'berth-"+policy+"'"), ContainSubstring(what+" is not allowed in namespace")))
}

// policyCase is an object in a namespace, and the policy that must refuse the object. If policy is empty, the object must be admitted.
type policyCase struct{ namespace, kind, spec, policy, what string }

var policyCases = []policyCase{
	{"default", "Instance", `process: {command: [/bin/sh]}`, "commands", "the program /bin/sh"},
	{"default", "Instance", `process: {command: [gohello, /bin/sh]}`, "", ""},
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

func TestPoliciesRefuseAndAdmit(t *testing.T) {
	namespaces(t)
	parameters(t, strictly, policyCases[0])
	for _, c := range policyCases {
		t.Run(fmt.Sprintf("%s in %s: %s", c.kind, c.namespace, c.spec), func(t *testing.T) { holds(t, c) })
	}
}

// TestPoliciesLeaveAloneWhatIsThere checks that an object that was created before its values were forbidden can be stopped and deleted, but cannot get
// another forbidden value.
func TestPoliciesLeaveAloneWhatIsThere(t *testing.T) {
	g := NewWithT(t)
	namespaces(t)
	free := map[string]string{"commands": "*", "images": "*", "directories": "*", "runtimes": "*"}
	parameters(t, free, policyCase{namespace: "default", kind: "Instance", spec: `{process: {command: [/bin/sh]}, runtime: {type: Host}}`})
	old := object(g, policyCase{namespace: "default", kind: "Instance", spec: `process: {command: [/bin/sh], workingDir: /etc}`})
	old.SetName("old")
	g.Eventually(func() error { return k8s.Create(t.Context(), old) }, patience, poll).Should(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), old))).To(Succeed()) })
	parameters(t, strictly, policyCases[0])

	set := func(value string, fields ...string) error {
		changed := old.DeepCopy()
		g.Expect(unstructured.SetNestedField(changed.Object, value, fields...)).To(Succeed())
		return k8s.Patch(t.Context(), changed, client.MergeFrom(old))
	}
	for _, p := range []struct{ value, field, what string }{{"/usr", "workingDir", "the directory /usr"}} {
		g.Eventually(func() error { return set(p.value, "spec", "process", p.field) }, patience, poll).Should(refusal("directories", p.what))
	}
	g.Eventually(func() error { return set("Stopped", "spec", "state") }, patience, poll).Should(Succeed())
	g.Expect(k8s.Delete(t.Context(), old)).To(Succeed())
}

// TestSamplesAreAdmitted checks that the initial parameters of an installation refuse the runtime Host, and admit the samples except those for Tmux.
func TestSamplesAreAdmitted(t *testing.T) {
	g := NewWithT(t)
	initially(t)
	files, err := filepath.Glob(filepath.Join(root, "config", "samples", "*", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := parse(text)
		g.Expect(err).NotTo(HaveOccurred())
		for _, o := range objects {
			admitted := Succeed()
			if filepath.Base(filepath.Dir(file)) == "tmux" { // these samples are for a manager on a single machine
				admitted = MatchError(ContainSubstring("the runtime Tmux is not allowed in namespace default"))
			}
			g.Eventually(func() error { return apply(t.Context(), o.DeepCopy(), client.DryRunAll) }, patience, poll).Should(admitted, file)
		}
	}
}

// TestRuntimesOfAManagerOutside checks that an object without a runtime needs permission for the runtime Host if the manager runs outside the cluster.
func TestRuntimesOfAManagerOutside(t *testing.T) {
	g := NewWithT(t)
	initially(t)
	unnamed := `{process: {command: [sh]}}`
	holds(t, policyCase{"default", "DevServer", unnamed, "", ""})
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
		holds(t, c)
	}
}

// initially sets the policy parameters that a new installation has.
func initially(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	namespaces(t)
	objects, err := render(t.Context(), filepath.Join("config", "policy"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" {
			data, _, err := unstructured.NestedStringMap(o.Object, "data")
			g.Expect(err).NotTo(HaveOccurred())
			parameters(t, data, policyCase{"default", "Instance", `{process: {command: [sh]}, runtime: {type: Host}}`, "runtimes", "the runtime Host"})
		}
	}
}

// TestImages checks the policy for images, and the policy for commands as far as it concerns additional containers in a Pod.
func TestImages(t *testing.T) {
	namespaces(t)
	parameters(t, strictly, policyCases[0])
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
		{"default", "Instance", spec(side(`command: [/bin/sh]`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(side(`command: [gohello]`)), "", ""},
		{"default", "Instance", spec(side(`args: [/bin/sh, -c, evil]`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(side(`args: [--port=80]`)), "", ""},
		{"default", "Instance", spec(side(`args: [gohello]`)), "", ""},
		{"default", "Instance", spec(side(`lifecycle: {postStart: {exec: {command: [/bin/sh]}}}`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(side(`readinessProbe: {exec: {command: [/bin/sh]}}`)), "commands", "the program /bin/sh"},
		{"default", "Instance", spec(`{type: Docker, docker: {image: local}}`), "runtimes", "the runtime Docker"},
	} {
		t.Run(c.spec, func(t *testing.T) { holds(t, c) })
	}
}

// TestMountsOfTheMachine checks which host directories containers and Pods can mount.
func TestMountsOfTheMachine(t *testing.T) {
	namespaces(t)
	strictlyDocker := maps.Clone(strictly)
	strictlyDocker["runtimes"] = "Pod\nDocker"
	parameters(t, strictlyDocker, policyCase{"default", "Instance", `{process: {command: [gohello]}, runtime: {type: Docker, docker: {image: local}}}`, "", ""})
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
		t.Run(c.spec, func(t *testing.T) { holds(t, c) })
	}
}

// TestMountsThatCome checks that the policies apply to a mount that is added to an existing object.
func TestMountsThatCome(t *testing.T) {
	g := NewWithT(t)
	namespaces(t)
	parameters(t, strictly, policyCases[0])
	there := object(g, policyCase{namespace: "default", kind: "DevServer", spec: `{process: {command: [gohello]}, runtime: {type: Pod, pod: {image: local}}}`})
	there.SetName("there")
	g.Eventually(func() error { return k8s.Create(t.Context(), there) }, patience, poll).Should(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), there))).To(Succeed()) })
	changed := there.DeepCopy()
	volumes := []any{map[string]any{"name": "a", "hostPath": map[string]any{"path": "/etc"}}}
	g.Expect(unstructured.SetNestedSlice(changed.Object, volumes, "spec", "runtime", "pod", "volumes")).To(Succeed())
	g.Expect(k8s.Patch(t.Context(), changed, client.MergeFrom(there), client.DryRunAll)).To(refusal("directories", "the directory /etc"))
}

// side returns a Pod runtime with an additional container. words are more fields of this container.
func side(words string) string {
	return `{type: Pod, pod: {image: local, template: {spec: {containers: [{name: side, image: local, ` + words + `}]}}}}`
}

// holds waits until the API server admits or refuses the object as the case requires.
func holds(t *testing.T, c policyCase) {
	t.Helper()
	g := NewWithT(t)
	want := Succeed()
	if c.policy != "" {
		want = refusal(c.policy, c.what)
	}
	g.Eventually(func() error { return k8s.Create(t.Context(), object(g, c), client.DryRunAll) }, patience, poll).Should(want)
}

func object(g Gomega, c policyCase) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte("spec:\n  "+c.spec), &o.Object)).To(Succeed())
	o.SetAPIVersion("berth.dev/v1alpha1")
	o.SetKind(c.kind)
	o.SetNamespace(c.namespace)
	o.SetName("tried")
	return o
}

// parameters sets the parameters of the policies and waits until the API server uses them. To detect this, it waits until the case seen holds; so this case
// must not hold with the previous parameters.
func parameters(t *testing.T, data map[string]string, seen policyCase) {
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
	holds(t, seen)
}

// namespaces creates the namespaces that the cases use.
func namespaces(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for name, labels := range map[string]map[string]string{"team-a": nil, "machines": {"berth.dev/allow-runtime": "Host"}} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		g.Expect(client.IgnoreAlreadyExists(k8s.Create(t.Context(), namespace))).To(Succeed())
	}
}

// logOf collects the output of a program; it can be read concurrently.
type logOf struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *logOf) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *logOf) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}
