// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/runtime"
)

func process(change ...func(*runtime.Process)) runtime.Process {
	p := runtime.Process{UID: "6a3c", Incarnation: 7, Name: "devservers/default/My.Web_Server", Command: []string{"serve", "$(HOME)", "$$"}, Dir: "/src",
		StopSignal: "SIGTERM", Grace: 2500 * time.Millisecond, Config: []byte(`{"namespace": "default", "image": "image:1"}`)}
	for _, c := range change {
		c(&p)
	}
	return p
}

func buildPod(g *WithT, p runtime.Process) *corev1.Pod {
	c, refused := parse(p)
	g.Expect(refused).NotTo(HaveOccurred())
	env, refused := environment(p)
	g.Expect(refused).NotTo(HaveOccurred())
	pod, refused := build(p, c, env)
	g.Expect(refused).NotTo(HaveOccurred())
	return pod
}

func TestBuild_SetsPodFields(t *testing.T) {
	g := NewWithT(t)
	pod := buildPod(g, process(func(p *runtime.Process) {
		p.Env, p.Open = []string{"PORT=1$", "PATH=/a:$b", "TOKEN=hidden"}, []string{"PORT", "ABSENT"}
		p.Config = []byte(`{"namespace": "default", "image": "image:1", "owner": {"apiVersion": "berth.dev/v1alpha1", "kind": "DevServer", "name": "web", "uid": "6a3c"}}`)
	}))
	g.Expect(pod.Name).To(MatchRegexp(`^my-web-server-[0-9a-f]{8}-7$`))
	g.Expect(pod.Labels).To(Equal(map[string]string{LabelManagedBy: ManagedBy, LabelUID: "6a3c", LabelIncarnation: "7"}))
	g.Expect(pod.OwnerReferences).To(ConsistOf(metav1.OwnerReference{APIVersion: "berth.dev/v1alpha1", Kind: "DevServer", Name: "web", UID: "6a3c"}))
	g.Expect(pod.Finalizers).To(ConsistOf(finalizer))
	g.Expect(pod.Spec.RestartPolicy).To(Equal(corev1.RestartPolicyNever))
	g.Expect(*pod.Spec.TerminationGracePeriodSeconds).To(BeEquivalentTo(3), "rounded up")
	g.Expect(*pod.Spec.AutomountServiceAccountToken).To(BeFalse())
	main := pod.Spec.Containers[0]
	g.Expect(main.Command).To(Equal([]string{"serve", "$$(HOME)", "$$$$"}), "the kubelet must not expand variables again")
	g.Expect(main.Env).To(Equal([]corev1.EnvVar{{Name: "PATH", Value: "/a:$$b"}, {Name: "PORT", Value: "1$$"}}))
	g.Expect(main.EnvFrom[0].SecretRef.Name).To(Equal(pod.Name))
	g.Expect(main.Lifecycle).To(BeNil())
	text, err := json.Marshal(pod)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).NotTo(ContainSubstring("hidden"), "permission to read Pods does not reveal secrets")
}

// The container of a process without a command runs the entrypoint of its image, also if a template names another program.
func TestBuild_LeavesProgramToImage(t *testing.T) {
	g := NewWithT(t)
	for _, template := range []string{`{}`, `{"spec": {"containers": [{"name": "main", "command": ["sh"], "args": ["-c", "evil"]}]}}`} {
		pod := buildPod(g, process(func(p *runtime.Process) {
			p.Command, p.Config = nil, []byte(`{"namespace": "default", "image": "image:1", "template": `+template+`}`)
		}))
		g.Expect(pod.Spec.Containers).To(ConsistOf(And(HaveField("Command", BeEmpty()), HaveField("Args", BeEmpty()))), template)
	}
}

// With a grace period of 0 the API server would remove the Pod object while the node still runs the Pod.
func TestBuild_SetsMinimumGracePeriod(t *testing.T) {
	g := NewWithT(t)
	pod := buildPod(g, process(func(p *runtime.Process) { p.Grace = 0 }))
	g.Expect(*pod.Spec.TerminationGracePeriodSeconds).To(BeEquivalentTo(1))
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0) // a template may set it
	g.Expect(grace(pod)).To(BeEquivalentTo(1))
}

// Variables that a template takes from ConfigMaps are added to the environment of the spec and do not replace it.
func TestTemplate_AddsToEnvironment(t *testing.T) {
	g := NewWithT(t)
	sources := func(template string) []corev1.EnvFromSource {
		return buildPod(g, process(func(p *runtime.Process) {
			p.Env = []string{"TOKEN=hidden"}
			text, err := json.Marshal(Config{Namespace: "default", Image: "image:1", Template: json.RawMessage(template)})
			g.Expect(err).NotTo(HaveOccurred())
			p.Config = text
		})).Spec.Containers[0].EnvFrom
	}
	own := HaveField("SecretRef", Not(BeNil()))
	g.Expect(sources(`{"spec": {"containers": [{"name": "main", "envFrom": [{"configMapRef": {"name": "more"}}]}]}}`)).To(
		HaveExactElements(HaveField("ConfigMapRef.Name", "more"), own), "the last source takes precedence")
	g.Expect(sources(`{"spec": {"containers": [{"name": "main", "tty": true}]}}`)).To(HaveExactElements(own))
	g.Expect(sources(`{"spec": {"containers": [{"name": "main", "envFrom": []}]}}`)).To(HaveExactElements(own))
	g.Expect(sources(`{"spec": {"containers": [{"name": "main", "envFrom": null}]}}`)).To(BeEmpty())
}

func TestPodName_IsUniqueAndValid(t *testing.T) {
	g := NewWithT(t)
	g.Expect(podName("a", "x/y/web", 1)).To(Equal(podName("a", "x/y/web", 1)))
	g.Expect(podName("a", "x/y/web", 1)).NotTo(Equal(podName("b", "x/y/web", 1)))
	g.Expect(podName("a", "", 1)).To(HavePrefix("berth-"))
	long := podName("a", strings.Repeat("x", 29)+"--"+strings.Repeat("y", 300), 1<<62)
	g.Expect(len(long)).To(BeNumerically("<=", 63), "the name is also a host name")
	g.Expect(long).NotTo(ContainSubstring("--"))
}

func TestTemplate_ChangesOnlyPermittedFields(t *testing.T) {
	g := NewWithT(t)
	with := func(template string) runtime.Process {
		return process(func(p *runtime.Process) {
			text, err := json.Marshal(Config{Namespace: "default", Image: "image:1", Template: json.RawMessage(template)})
			g.Expect(err).NotTo(HaveOccurred())
			p.Config = text
		})
	}
	pod := buildPod(g, with(`{"metadata": {"labels": {"team": "a", "berth.dev/uid": "other"}}, "spec": {"restartPolicy": "Always", "priorityClassName": "low",
		"containers": [{"name": "main", "tty": true}, {"name": "side", "image": "side"}]}}`))
	g.Expect(pod.Labels).To(And(HaveKeyWithValue("team", "a"), HaveKeyWithValue(LabelUID, "6a3c")), "the labels of Berth stay")
	g.Expect(pod.Spec.RestartPolicy).To(Equal(corev1.RestartPolicyNever), "the kubelet does not restart the program")
	g.Expect(pod.Spec.PriorityClassName).To(Equal("low"))
	g.Expect(pod.Spec.Containers).To(ConsistOf(
		And(HaveField("Name", "main"), HaveField("TTY", true), HaveField("Image", "image:1")), HaveField("Name", "side")))

	for template, says := range map[string]string{
		`{"spec": {"containers": [{"$patch": "delete", "name": "main"}]}}`: "removes the container main",
		`3`:                              "cannot merge spec.runtime.pod.template",
		`{"spec": {"priority": "high"}}`: "does not result in a valid Pod",
		`{"spec": {"InitContainers": [{"name": "x", "image": "x"}]}}`:                                               `unknown field "spec.InitContainers"`,
		`{"spec": {"initContainers": [{"name": "x", "Image": "x"}]}}`:                                               `unknown field "spec.initContainers[0].Image"`,
		`{"spec": {"containers": [{"name": "main", "Lifecycle": {}}]}}`:                                             `unknown field "spec.containers[0].Lifecycle"`,
		`{"spec": {"containers": [{"name": "main", "env": [{"name": "LD_PRELOAD", "value": "/evil.so"}]}]}}`:        "LD_PRELOAD is not permitted, because it changes how every program is loaded",
		`{"spec": {"initContainers": [{"name": "x", "image": "x", "env": [{"name": "LD_AUDIT", "value": "/e"}]}]}}`: "LD_AUDIT is not permitted, because it changes",
	} {
		c, refused := parse(with(template))
		g.Expect(refused).NotTo(HaveOccurred())
		_, refused = build(with(template), c, variables{})
		g.Expect(refused).To(MatchError(ContainSubstring(says)))
	}
}

func TestParse_RefusesInvalidConfig(t *testing.T) {
	g := NewWithT(t)
	for says, change := range map[string]func(*runtime.Process){
		"cannot parse the configuration": func(p *runtime.Process) { p.Config = []byte("{") },
		"no image":                       func(p *runtime.Process) { p.Config = []byte(`{"namespace": "x"}`) },
		"no namespace":                   func(p *runtime.Process) { p.Config = []byte(`{"image": "x"}`) },
		"invalid claim name": func(p *runtime.Process) {
			p.Config = []byte(`{"namespace": "x", "image": "x", "claims": [{"name": "A b", "mountPath": "/x"}]}`)
		},
		"two claims": func(p *runtime.Process) {
			p.Config = []byte(`{"namespace": "x", "image": "x", "claims": [{"name": "a", "mountPath": "/x"}, {"name": "a", "mountPath": "/y"}]}`)
		},
		"absolute path": func(p *runtime.Process) {
			p.Config = []byte(`{"namespace": "x", "image": "x", "claims": [{"name": "a", "mountPath": "x"}]}`)
		},
		"do not support the signal": func(p *runtime.Process) { p.StopSignal = "SIGMOON" },
	} {
		_, refused := parse(process(change))
		g.Expect(refused).To(MatchError(ContainSubstring(says)))
	}
	for variable, says := range map[string]string{"x": "NAME=value", "=x": "NAME=value", "A B=x": "NAME=value", "A=\x00": "NAME=value", "LD_PRELOAD=x": "LD_PRELOAD"} {
		_, refused := environment(runtime.Process{Env: []string{variable}})
		g.Expect(refused).To(MatchError(ContainSubstring(says)))
	}
	env, refused := environment(runtime.Process{Env: []string{"A=1", "A=2", "B=1", "B=2"}, Open: []string{"B"}})
	g.Expect(refused).NotTo(HaveOccurred())
	g.Expect(env.hidden).To(Equal(map[string]string{"A": "2"}))
	g.Expect(env.open).To(Equal([]corev1.EnvVar{{Name: "B", Value: "2"}}))
}

func TestBuild_SetsStopSignal(t *testing.T) {
	g := NewWithT(t)
	pod := buildPod(g, process(func(p *runtime.Process) { p.StopSignal = "SIGINT" }))
	g.Expect(stopSignal(pod)).To(Equal("SIGINT"))
	g.Expect(pod.Spec.OS.Name).To(Equal(corev1.Linux), "a stop signal requires it")
}

// Policies and users read in the spec which program is executed, so a template cannot change the program.
func TestTemplate_CannotChangeProgram(t *testing.T) {
	g := NewWithT(t)
	pod := buildPod(g, process(func(p *runtime.Process) {
		p.Config = []byte(`{"namespace": "default", "image": "image:1", "template": {"spec": {"containers": [
			{"name": "main", "image": "evil", "command": ["sh"], "args": ["-c", "evil"], "tty": true}, {"name": "side", "image": "side:1"}]}}}`)
	}))
	for _, c := range pod.Spec.Containers {
		if c.Name == Container {
			g.Expect(c.Image).To(Equal("image:1"))
			g.Expect(c.Command[0]).To(Equal("serve"))
			g.Expect(c.Args).To(BeEmpty())
			g.Expect(c.TTY).To(BeTrue(), "the rest is merged")
		} else {
			g.Expect(c.Image).To(Equal("side:1"))
		}
	}
}
