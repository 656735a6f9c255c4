// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// Paths and volumes of the results and the inputs of a program in its container. A kubelet copies resultFile to the status of the Pod as the termination
// message.
const (
	resultFile      = corev1.TerminationMessagePathDefault
	artifactsFolder = "/berth/artifacts"
	inputsFolder    = "/berth/inputs"
	artifactsVolume = "berth-artifacts"
	inputsVolume    = "berth-inputs"
)

// mostWords is the maximum size of the termination message of one container that a kubelet keeps, in bytes. mostWordsOfPod is the maximum for a whole Pod; the
// kubelet divides it equally among the containers.
const (
	mostWords      = 4 << 10
	mostWordsOfPod = 12 << 10
)

// Place implements runtime.ResultStore.
func (*Runtime) Place(types.UID) runtime.ResultPaths {
	return runtime.ResultPaths{File: resultFile, Artifacts: artifactsFolder, Inputs: inputsFolder, Private: true}
}

// inputsName returns the name of the Secret with the inputs of a Pod. It cannot equal the name of an environment's Secret, which ends with a number.
func inputsName(pod string) string { return pod + "-inputs" }

// furnish adds the result file, the artifacts folder and the inputs to a Pod whose template was already merged. If a volume is mounted at the artifacts folder,
// furnish uses that volume. It rejects a template that would move the result file or the inputs.
func furnish(pod *corev1.Pod, p runtime.Process) *facts.StartError {
	if !p.Results {
		return nil
	}
	main := mainOf(pod)
	if wordsMoved(main) {
		return oci.Failed("spec.runtime.pod.template sets terminationMessagePath or terminationMessagePolicy of the container %s, which Berth uses for the result of a run; remove them", Container)
	}
	main.TerminationMessagePath, main.TerminationMessagePolicy = resultFile, corev1.TerminationMessageReadFile
	taken := map[string]bool{}
	for _, mount := range main.VolumeMounts {
		taken[path.Clean(mount.MountPath)] = true
	}
	for _, ours := range []string{resultFile, inputsFolder} {
		if taken[ours] {
			return oci.Failed("spec.runtime.pod mounts a volume at %s, which is reserved for the result and the inputs of a run; use another mount path", ours)
		}
	}
	if !taken[artifactsFolder] {
		mount(pod, main, artifactsVolume, artifactsFolder, false, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	}
	if len(p.Inputs) > 0 {
		mount(pod, main, inputsVolume, inputsFolder, true, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: inputsName(pod.Name)}})
	}
	return nil
}

func mount(pod *corev1.Pod, main *corev1.Container, name, at string, readOnly bool, what corev1.VolumeSource) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: what})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
}

// mainOf returns the program's container, or nil if there is none. Pods that Berth created always have one.
func mainOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == Container {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// wordsMoved reports whether something other than the result file becomes the termination message: another file, or the output of a program that fails.
func wordsMoved(main *corev1.Container) bool {
	at, policy := main.TerminationMessagePath, main.TerminationMessagePolicy
	return at != "" && at != resultFile || policy != "" && policy != corev1.TerminationMessageReadFile
}

// inputsSecret returns the Secret with the inputs of an incarnation, or nil if it has none.
func inputsSecret(p runtime.Process, c Config) *corev1.Secret {
	if !p.Results || len(p.Inputs) == 0 {
		return nil
	}
	secret := &corev1.Secret{ObjectMeta: metadata(p, c), Data: p.Inputs}
	secret.Name = inputsName(secret.Name)
	return secret
}

// hasInputs reports whether a Pod uses a Secret for its inputs.
func hasInputs(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == inputsName(p.Name) })
}

// LastWords returns the termination message of an incarnation's program, as far as the node keeps it. known is true after the program has ended and the node
// has reported the exit. LastWords reads only the cache.
func (r *Runtime) LastWords(uid types.UID, incarnation int64) (text string, known bool) {
	if p, known := r.Pod(uid, incarnation); known {
		return lastWords(p)
	}
	return "", false
}

func lastWords(p *corev1.Pod) (text string, known bool) {
	main := mainStatus(p)
	if main == nil || main.State.Terminated == nil {
		return "", false
	}
	t := main.State.Terminated
	if neverRan(t) || t.Reason == reasonStatusUnknown {
		return "", false // the message is from the node, not from the program
	}
	return t.Message, true
}

// Results implements runtime.ResultStore. It returns the termination message of the newest incarnation. An empty result file counts as no file, because the
// kubelet creates an empty file. The manager cannot see the contents of the artifacts folder.
func (r *Runtime) Results(uid types.UID) runtime.Results {
	newest := r.store.newest(uid)
	if newest == nil {
		return runtime.Results{}
	}
	text, _ := lastWords(newest)
	if text == "" {
		return runtime.Results{}
	}
	found := runtime.Results{File: true, Problem: unfitWords(newest, text)}
	if found.Problem != "" {
		return found // the contents and size of the file are unknown
	}
	sum := sha256.Sum256([]byte(text))
	found.Size, found.SHA256 = int64(len(text)), hex.EncodeToString(sum[:])
	found.Head = []byte(text)[:min(len(text), runtime.ResultHeadBytes)]
	return found
}

// unfitWords returns why a termination message may differ from the file that the program wrote, or "" if they are equal.
func unfitWords(p *corev1.Pod, text string) string {
	containers := len(p.Spec.Containers) + len(p.Spec.InitContainers) + len(p.Spec.EphemeralContainers)
	most := min(mostWords, mostWordsOfPod/max(containers, 1))
	main := mainOf(p)
	switch {
	case main != nil && wordsMoved(main):
		return "A component of the cluster changed terminationMessagePath or terminationMessagePolicy of the Pod after its creation, " +
			"so this text may not be the content of the result file. Exclude the Pods of Berth from that component."
	case len(text) >= most:
		return fmt.Sprintf("The result file has %d bytes or more, so the node may have truncated it. Write a shorter text, and put the rest on a volume that "+
			"outlives the Pod, such as a claim that is mounted at %s.", most, artifactsFolder)
	case strings.ContainsRune(text, utf8.RuneError):
		return "The result file is not valid UTF-8, so the node changed its content. Write UTF-8 text, and put other data on a volume that outlives the Pod."
	}
	return ""
}
