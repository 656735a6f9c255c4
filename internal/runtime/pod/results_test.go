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

// aRun has a place for results, and what Config says beside namespace and image.
func aRun(config string, change ...func(*runtime.Process)) runtime.Process {
	given := func(p *runtime.Process) {
		p.Results = true
		p.Config = []byte(fmt.Sprintf(`{"namespace": "default", "image": "image:1" %s}`, config))
	}
	return process(append([]func(*runtime.Process){given}, change...)...)
}

func withInputs(p *runtime.Process) { p.Inputs = map[string][]byte{"execute.jsonl": []byte("{}\n")} }

// mountsOf says what is where in the container.
func mountsOf(pod *corev1.Pod) map[string]string {
	at := map[string]string{}
	for _, mount := range mainOf(pod).VolumeMounts {
		at[mount.MountPath] = mount.Name
	}
	return at
}

func TestThePodOfARun(t *testing.T) {
	g := NewWithT(t)
	place := (*Runtime)(nil).Place("any")
	pod := made(g, aRun("", withInputs))
	main := mainOf(pod)
	g.Expect(main.TerminationMessagePath).To(Equal(place.File))
	g.Expect(main.TerminationMessagePolicy).To(Equal(corev1.TerminationMessageReadFile))
	g.Expect(mountsOf(pod)).To(Equal(map[string]string{place.Artifacts: artifactsVolume, place.Inputs: inputsVolume}))
	g.Expect(pod.Spec.Volumes).To(HaveLen(2))
	g.Expect(pod.Spec.Volumes[0].EmptyDir).NotTo(BeNil())
	g.Expect(pod.Spec.Volumes[1].Secret.SecretName).To(Equal(pod.Name + "-inputs"))
	g.Expect(main.VolumeMounts[1].ReadOnly).To(BeTrue())
	g.Expect(hasInputs(pod)).To(BeTrue())

	c, refused := parse(aRun(""))
	g.Expect(refused).NotTo(HaveOccurred())
	g.Expect(inputsSecret(aRun("", withInputs), c)).To(And(HaveField("Name", pod.Name+"-inputs"), HaveField("Labels", pod.Labels),
		HaveField("Data", HaveKeyWithValue("execute.jsonl", []byte("{}\n")))))
	g.Expect(inputsSecret(aRun(""), c)).To(BeNil(), "without inputs there is none")
	pod = made(g, aRun(""))
	g.Expect(hasInputs(pod)).To(BeFalse())
	g.Expect(mountsOf(pod)).To(Equal(map[string]string{place.Artifacts: artifactsVolume}))
}

func TestAPodThatIsNoRunHasNoPlace(t *testing.T) {
	g := NewWithT(t)
	pod := made(g, process(withInputs))
	g.Expect(pod.Spec.Volumes).To(BeEmpty())
	g.Expect(mainOf(pod)).To(And(HaveField("TerminationMessagePath", ""), HaveField("TerminationMessagePolicy", BeEmpty()), HaveField("VolumeMounts", BeEmpty())))
	template := `, "template": {"spec": {"containers": [{"name": "main", "terminationMessagePath": "/last", "terminationMessagePolicy": "FallbackToLogsOnError"}]}}`
	pod = made(g, aRun(template, func(p *runtime.Process) { p.Results = false }))
	g.Expect(mainOf(pod).TerminationMessagePath).To(Equal("/last"), "it is the template's")
}

func TestArtifactsThatOutliveThePod(t *testing.T) {
	for name, config := range map[string]string{
		"a mount": `, "volumes": [{"name": "mine", "emptyDir": {}}], "mounts": [{"name": "mine", "mountPath": "/berth/artifacts/"}]`,
		"a claim": `, "claims": [{"name": "mine", "mountPath": "/berth/artifacts"}]`,
		"a template": `, "template": {"spec": {"volumes": [{"name": "mine", "emptyDir": {}}],
			"containers": [{"name": "main", "volumeMounts": [{"name": "mine", "mountPath": "/berth/artifacts"}]}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pod := made(g, aRun(config))
			g.Expect(pod.Spec.Volumes).To(ConsistOf(HaveField("Name", "mine")))
			g.Expect(mountsOf(pod)).To(HaveLen(1))
		})
	}
	g := NewWithT(t)
	pod := made(g, aRun(`, "claims": [{"name": "mine", "mountPath": "/berth"}, {"name": "more", "mountPath": "/berth/artifacts/more"}]`))
	g.Expect(mountsOf(pod)).To(HaveKeyWithValue("/berth/artifacts", artifactsVolume), "around and in it is not at it")
}

func TestATemplateDoesNotMoveResults(t *testing.T) {
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
		p := aRun(config)
		c, refused := parse(p)
		g.Expect(refused).NotTo(HaveOccurred())
		_, refused = build(p, c, variables{})
		g.Expect(refused).To(MatchError(ContainSubstring(says)))
	}
	pod := made(g, aRun(main(`"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"`)))
	g.Expect(mainOf(pod).TerminationMessagePath).To(Equal("/dev/termination-log"), "to say what is so anyway is no move")
	pod = made(g, aRun(`, "template": {"spec": {"containers": [{"name": "first", "image": "x"}, {"name": "main", "tty": true}]}}`))
	g.Expect(mountsOf(pod)).To(HaveKey("/berth/artifacts"), "wherever the container stands")
}

// keeping is a Runtime that knows one Pod.
func keeping(p *corev1.Pod) *Runtime {
	r := &Runtime{store: newStore()}
	r.store.put(p, true)
	return r
}

func TestLastWords(t *testing.T) {
	lost := condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC", "node is gone")
	for name, test := range map[string]struct {
		pod   *corev1.Pod
		known bool
		text  string
	}{
		"well":              {podWith(corev1.PodSucceeded, endedWith(0, "Completed", "done\n")), true, "done\n"},
		"badly":             {podWith(corev1.PodFailed, endedWith(3, "Error", "no space")), true, "no space"},
		"without a word":    {podWith(corev1.PodFailed, endedWith(137, "OOMKilled", "")), true, ""},
		"others go on":      {podWith(corev1.PodRunning, endedWith(0, "Completed", "done")), true, "done"},
		"taken away":        {podWith(corev1.PodFailed, endedWith(143, "Error", "so far"), deleted, lost), true, "so far"},
		"runs":              {podWith(corev1.PodRunning, running), false, ""},
		"waits":             {podWith(corev1.PodPending, waitsFor("ContainerCreating", "")), false, ""},
		"never had a node":  {podWith(corev1.PodPending, corev1.ContainerState{}, nowhere, deleted), false, ""},
		"its node is gone":  {podWith(corev1.PodFailed, running, lost), false, ""},
		"never ran":         {podWith(corev1.PodFailed, endedWith(128, "StartError", "exec: no such file")), false, ""},
		"nobody has seen":   {podWith(corev1.PodFailed, endedWith(137, "ContainerStatusUnknown", "The container could not be located")), false, ""},
		"could not be made": {podWith(corev1.PodFailed, endedWith(128, "ContainerCannotRun", "moon")), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, r := NewWithT(t), keeping(test.pod)
			text, known := r.LastWords("object", 3)
			g.Expect(known).To(Equal(test.known))
			g.Expect(text).To(Equal(test.text))
			_, known = r.LastWords("object", 4)
			g.Expect(known).To(BeFalse(), "another incarnation")
			_, known = r.LastWords("other", 3)
			g.Expect(known).To(BeFalse())
			g.Expect(r.Results("object").File).To(Equal(test.text != ""))
			g.Expect(r.Results("other")).To(Equal(runtime.Results{}))
		})
	}
}

func TestResultsThatAreNotTaken(t *testing.T) {
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
		"the longest":              {size: 4095, change: usual},
		"longer":                   {size: 4096, change: usual, problem: "4096 bytes or more"},
		"among three containers":   {size: 4095, change: withMore(2)},
		"the longest among four":   {size: 3071, change: withMore(3)},
		"longer among four":        {size: 3072, change: withMore(3), problem: "3072 bytes or more"},
		"not UTF-8":                {size: 10, last: "\ufffd", change: usual, problem: "not UTF-8"},
		"perhaps the output":       {size: 10, change: toLogs, problem: "terminationMessagePolicy"},
		"perhaps of another place": {size: 10, change: elsewhere, problem: "terminationMessagePath"},
	} {
		t.Run(name, func(t *testing.T) {
			g, text := NewWithT(t), strings.Repeat("x", test.size)+test.last
			found := keeping(podWith(corev1.PodSucceeded, endedWith(0, "Completed", text), test.change)).Results("object")
			g.Expect(found.File).To(BeTrue())
			g.Expect(found.Artifacts).To(BeFalse(), "nobody can see them")
			g.Expect(len(found.Problem)).To(BeNumerically("<", 512), "a status takes no more")
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
