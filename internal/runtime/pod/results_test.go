// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/runtime"
)

// runProcess returns a process with Results set. config contains fields for its Config in addition to the namespace and the image.
func runProcess(config string, change ...func(*runtime.Process)) runtime.Process {
	given := func(p *runtime.Process) {
		p.Results = true
		p.Config = []byte(fmt.Sprintf(`{"namespace": "default", "image": "image:1" %s}`, config))
	}
	return process(append([]func(*runtime.Process){given}, change...)...)
}

func withInputs(p *runtime.Process) { p.Inputs = map[string][]byte{"execute.jsonl": []byte("{}\n")} }

// mountsOf returns the volume of each mount path of the container.
func mountsOf(pod *corev1.Pod) map[string]string {
	at := map[string]string{}
	for _, mount := range mainOf(pod).VolumeMounts {
		at[mount.MountPath] = mount.Name
	}
	return at
}

func TestBuild_MountsResultsAndInputs(t *testing.T) {
	g := NewWithT(t)
	place := (*Runtime)(nil).Place("any")
	pod := buildPod(g, runProcess("", withInputs))
	main := mainOf(pod)
	g.Expect(main.TerminationMessagePath).To(Equal(place.File))
	g.Expect(main.TerminationMessagePolicy).To(Equal(corev1.TerminationMessageReadFile))
	g.Expect(mountsOf(pod)).To(Equal(map[string]string{place.Artifacts: artifactsVolume, place.Inputs: inputsVolume}))
	g.Expect(pod.Spec.Volumes).To(HaveLen(2))
	g.Expect(pod.Spec.Volumes[0].EmptyDir).NotTo(BeNil())
	g.Expect(pod.Spec.Volumes[1].Secret.SecretName).To(Equal(pod.Name + "-inputs"))
	g.Expect(main.VolumeMounts[1].ReadOnly).To(BeTrue())
	g.Expect(hasInputs(pod)).To(BeTrue())

	c, refused := parse(runProcess(""))
	g.Expect(refused).NotTo(HaveOccurred())
	g.Expect(inputsSecret(runProcess("", withInputs), c)).To(And(HaveField("Name", pod.Name+"-inputs"), HaveField("Labels", pod.Labels),
		HaveField("Data", HaveKeyWithValue("execute.jsonl", []byte("{}\n")))))
	g.Expect(inputsSecret(runProcess(""), c)).To(BeNil(), "without inputs there is no Secret")
	pod = buildPod(g, runProcess(""))
	g.Expect(hasInputs(pod)).To(BeFalse())
	g.Expect(mountsOf(pod)).To(Equal(map[string]string{place.Artifacts: artifactsVolume}))
}

func TestBuild_MountsNothingWithoutResults(t *testing.T) {
	g := NewWithT(t)
	pod := buildPod(g, process(withInputs))
	g.Expect(pod.Spec.Volumes).To(BeEmpty())
	g.Expect(mainOf(pod)).To(And(HaveField("TerminationMessagePath", ""), HaveField("TerminationMessagePolicy", BeEmpty()), HaveField("VolumeMounts", BeEmpty())))
	template := `, "template": {"spec": {"containers": [{"name": "main", "terminationMessagePath": "/last", "terminationMessagePolicy": "FallbackToLogsOnError"}]}}`
	pod = buildPod(g, runProcess(template, func(p *runtime.Process) { p.Results = false }))
	g.Expect(mainOf(pod).TerminationMessagePath).To(Equal("/last"), "the path is that of the template")
}

func TestBuild_UsesOwnVolumeForArtifacts(t *testing.T) {
	for name, config := range map[string]string{
		"a mount": `, "volumes": [{"name": "mine", "emptyDir": {}}], "mounts": [{"name": "mine", "mountPath": "/berth/artifacts/"}]`,
		"a claim": `, "claims": [{"name": "mine", "mountPath": "/berth/artifacts"}]`,
		"a template": `, "template": {"spec": {"volumes": [{"name": "mine", "emptyDir": {}}],
			"containers": [{"name": "main", "volumeMounts": [{"name": "mine", "mountPath": "/berth/artifacts"}]}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pod := buildPod(g, runProcess(config))
			g.Expect(pod.Spec.Volumes).To(ConsistOf(HaveField("Name", "mine")))
			g.Expect(mountsOf(pod)).To(HaveLen(1))
		})
	}
	g := NewWithT(t)
	pod := buildPod(g, runProcess(`, "claims": [{"name": "mine", "mountPath": "/berth"}, {"name": "more", "mountPath": "/berth/artifacts/more"}]`))
	g.Expect(mountsOf(pod)).To(HaveKeyWithValue("/berth/artifacts", artifactsVolume), "mounts above and below the path do not replace it")
}

func TestTemplate_CannotMoveResults(t *testing.T) {
	g := NewWithT(t)
	main := func(fields string) string {
		return `, "template": {"spec": {"containers": [{"name": "main", ` + fields + `}]}}`
	}
	for config, says := range map[string]string{
		main(`"terminationMessagePath": "/last"`):                             "terminationMessagePath",
		main(`"terminationMessagePolicy": "FallbackToLogsOnError"`):           "terminationMessagePolicy",
		main(`"volumeMounts": [{"name": "x", "mountPath": "/berth/inputs"}]`): "mounts a volume at /berth/inputs",
		`, "mounts": [{"name": "x", "mountPath": "/dev/termination-log"}]`:    "mounts a volume at /dev/termination-log",
	} {
		p := runProcess(config)
		c, refused := parse(p)
		g.Expect(refused).NotTo(HaveOccurred())
		_, refused = build(p, c, variables{})
		g.Expect(refused).To(MatchError(ContainSubstring(says)))
	}
	pod := buildPod(g, runProcess(main(`"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"`)))
	g.Expect(mainOf(pod).TerminationMessagePath).To(Equal("/dev/termination-log"), "setting the default values changes nothing")
	pod = buildPod(g, runProcess(`, "template": {"spec": {"containers": [{"name": "first", "image": "x"}, {"name": "main", "tty": true}]}}`))
	g.Expect(mountsOf(pod)).To(HaveKey("/berth/artifacts"), "at any position in the list of containers")
}

// runtimeWith returns a Runtime that knows one Pod.
func runtimeWith(p *corev1.Pod) *Runtime {
	r := &Runtime{store: newStore()}
	r.SetNamespace("object", p.Namespace)
	r.store.put(p, true)
	return r
}

func TestLastWords_ReturnsTerminationMessage(t *testing.T) {
	lost := withCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC", "node is gone")
	for name, test := range map[string]struct {
		pod   *corev1.Pod
		known bool
		text  string
	}{
		"exit 0":               {podWith(corev1.PodSucceeded, terminatedState(0, "Completed", "done\n")), true, "done\n"},
		"exit 3":               {podWith(corev1.PodFailed, terminatedState(3, "Error", "no space")), true, "no space"},
		"without a message":    {podWith(corev1.PodFailed, terminatedState(137, "OOMKilled", "")), true, ""},
		"other containers run": {podWith(corev1.PodRunning, terminatedState(0, "Completed", "done")), true, "done"},
		"evicted":              {podWith(corev1.PodFailed, terminatedState(143, "Error", "so far"), deleted, lost), true, "so far"},
		"running":              {podWith(corev1.PodRunning, running), false, ""},
		"waiting":              {podWith(corev1.PodPending, waitingState("ContainerCreating", "")), false, ""},
		"never scheduled":      {podWith(corev1.PodPending, corev1.ContainerState{}, unscheduled, deleted), false, ""},
		"node lost":            {podWith(corev1.PodFailed, running, lost), false, ""},
		"never ran":            {podWith(corev1.PodFailed, terminatedState(128, "StartError", "exec: no such file")), false, ""},
		"exit unknown":         {podWith(corev1.PodFailed, terminatedState(137, "ContainerStatusUnknown", "The container could not be located")), false, ""},
		"could not be created": {podWith(corev1.PodFailed, terminatedState(128, "ContainerCannotRun", "moon")), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, r := NewWithT(t), runtimeWith(test.pod)
			text, known := r.LastWords("object", 3)
			g.Expect(known).To(Equal(test.known))
			g.Expect(text).To(Equal(test.text))
			_, known = r.LastWords("object", 4)
			g.Expect(known).To(BeFalse(), "another incarnation has no result")
			_, known = r.LastWords("other", 3)
			g.Expect(known).To(BeFalse())
			g.Expect(r.Results("object").File).To(Equal(test.text != ""))
			g.Expect(r.Results("other")).To(Equal(runtime.Results{}))
		})
	}
}

func TestResults_ReportsUnusableMessages(t *testing.T) {
	withMore := func(n int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, make([]corev1.Container, n)...)
		}
	}
	toLogs := func(p *corev1.Pod) {
		mainOf(p).TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	elsewhere := func(p *corev1.Pod) { mainOf(p).TerminationMessagePath = "/other" }
	usual := func(p *corev1.Pod) {
		mainOf(p).TerminationMessagePath, mainOf(p).TerminationMessagePolicy = resultFile, corev1.TerminationMessageReadFile
	}
	for name, test := range map[string]struct {
		size    int
		last    string
		change  func(*corev1.Pod)
		problem string
	}{
		"maximum length":                  {size: 4095, change: usual},
		"too long":                        {size: 4096, change: usual, problem: "4096 bytes or more"},
		"three containers":                {size: 4095, change: withMore(2)},
		"maximum length, four containers": {size: 3071, change: withMore(3)},
		"too long, four containers":       {size: 3072, change: withMore(3), problem: "3072 bytes or more"},
		"not valid UTF-8":                 {size: 10, last: "\ufffd", change: usual, problem: "not valid UTF-8"},
		"may be the output":               {size: 10, change: toLogs, problem: "terminationMessagePolicy"},
		"may be another file":             {size: 10, change: elsewhere, problem: "terminationMessagePath"},
	} {
		t.Run(name, func(t *testing.T) {
			g, text := NewWithT(t), strings.Repeat("x", test.size)+test.last
			found := runtimeWith(podWith(corev1.PodSucceeded, terminatedState(0, "Completed", text), test.change)).Results("object")
			g.Expect(found.File).To(BeTrue())
			g.Expect(found.Artifacts).To(BeFalse(), "artifacts of a Pod cannot be read")
			g.Expect(len(found.Problem)).To(BeNumerically("<", 512), "the limit of the status field")
			if test.problem == "" {
				g.Expect(found).To(And(HaveField("Problem", ""), HaveField("Size", BeEquivalentTo(len(text))), HaveField("SHA256", HaveLen(64)),
					HaveField("Head", BeEquivalentTo(text))))
				return
			}
			g.Expect(found.Problem).To(ContainSubstring(test.problem))
			g.Expect(found).To(And(HaveField("Size", BeZero()), HaveField("SHA256", ""), HaveField("Head", BeEmpty())))
		})
	}
}
