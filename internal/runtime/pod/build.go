// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	strictjson "sigs.k8s.io/json"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/oci"
	"github.com/berth-dev/berth/internal/shim"
)

// podName returns the same name for the same incarnation, so that a repeated start finds the Pod instead of creating a second one.
func podName(uid types.UID, name string, incarnation int64) string {
	return objectName(uid, name) + "-" + strconv.FormatInt(incarnation, 10)
}

// objectName returns the common prefix of the names of all Pods, Secrets and claims of an object.
func objectName(uid types.UID, name string) string {
	return cmp.Or(printable.Name(path.Base(name), 30), "berth") + "-" + short(uid)
}

// short returns a hash of the UID that keeps names unique for objects with the same display name.
func short(uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return hex.EncodeToString(sum[:4])
}

// metadata returns the metadata of every API object that is created for an incarnation.
func metadata(p runtime.Process, c Config) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name: podName(p.UID, p.Name, p.Incarnation), Namespace: c.Namespace,
		Labels: map[string]string{LabelManagedBy: ManagedBy, LabelUID: string(p.UID), LabelIncarnation: strconv.FormatInt(p.Incarnation, 10)},
	}
	if c.Owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*c.Owner}
	}
	return m
}

// build returns the Pod of an incarnation. Variables that may be secret are in a Secret with the Pod's name, because more users can read Pods than Secrets.
func build(p runtime.Process, c Config, env variables) (*corev1.Pod, *facts.StartError) {
	pod := &corev1.Pod{ObjectMeta: metadata(p, c), Spec: corev1.PodSpec{
		// The sandbox, not the program, is process 1. Signals then have their usual effect on the program, and no process of the tree outlives the sandbox.
		ShareProcessNamespace:         ptr.To(true),
		InitContainers:                c.Init,
		Containers:                    []corev1.Container{container(p, c, env)},
		Volumes:                       c.Volumes,
		NodeSelector:                  c.NodeSelector,
		Tolerations:                   c.Tolerations,
		ServiceAccountName:            c.ServiceAccountName,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To(seconds(p.Grace)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}}
	mountClaims(pod, p, c.Claims)
	if p.StopSignal != "" && p.StopSignal != "SIGTERM" {
		pod.Spec.OS = &corev1.PodOS{Name: corev1.Linux} // required to set a stop signal
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.Signal(p.StopSignal))}
	}
	pod.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": Container}
	if refused := mergeTemplate(pod, c.Template); refused != nil {
		return nil, refused
	}
	if refused := furnish(pod, p); refused != nil {
		return nil, refused
	}
	// Set again what a template must not change: the labels and annotations that identify the Pod, the finalizer, and the restart policy, because the kubelet
	// must not run the program twice. Policies and the status of the object rely on these values.
	maps.Copy(pod.Labels, metadata(p, c).Labels)
	maps.Copy(pod.Annotations, c.Annotations)
	pod.Annotations[annotationName] = p.Name
	origin, _ := json.Marshal(p.Origin) // cannot fail for two strings
	pod.Annotations[annotationOrigin] = string(origin)
	if t := p.Terminal; t != nil {
		pod.Annotations[annotationTerminal] = strconv.Itoa(int(t.Columns)) + "x" + strconv.Itoa(int(t.Rows))
	}
	pod.Finalizers = []string{finalizer}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return pod, nil
}

func container(p runtime.Process, c Config, env variables) corev1.Container {
	main := corev1.Container{
		Name: Container, Image: c.Image, ImagePullPolicy: c.PullPolicy, WorkingDir: p.Dir, Resources: c.Resources, VolumeMounts: c.Mounts,
		Stdin: true, TTY: p.Terminal != nil, Env: env.open,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	for _, word := range p.Command {
		main.Command = append(main.Command, literal(word))
	}
	if len(env.hidden) > 0 {
		main.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: podName(p.UID, p.Name, p.Incarnation)}}}}
	}
	return main
}

// literal prevents the cluster from expanding $(NAME), because Berth has already expanded the text.
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// seconds converts a grace period to seconds. It rounds up, so that the node waits at least as long as requested, and returns at least shortestGrace, because
// a grace period of 0 would delete the Pod object before the node has terminated the Pod.
func seconds(grace time.Duration) int64 {
	return max(shortestGrace, int64((grace+time.Second-1)/time.Second))
}

// shortestGrace is the shortest grace period, in seconds, with which the node terminates the Pod before the Pod object is deleted.
const shortestGrace = 1

// mergeTemplate merges spec.runtime.pod.template over the generated Pod.
func mergeTemplate(pod *corev1.Pod, template json.RawMessage) *facts.StartError {
	if len(template) == 0 {
		return nil
	}
	given := pod.Spec.Containers[0]
	before, err := json.Marshal(corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec})
	if err != nil {
		return oci.Failed("cannot encode the Pod: %v", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(before, template, corev1.PodTemplateSpec{})
	if err != nil {
		return oci.Failed("cannot merge spec.runtime.pod.template: %v", err)
	}
	// Field names are matched case-sensitively, as in the API server, because policies check the exact names.
	var after corev1.PodTemplateSpec
	unknown, err := strictjson.UnmarshalStrict(merged, &after)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return oci.Failed("spec.runtime.pod.template does not result in a valid Pod: %v", err)
	}
	if refused := loads(after.Spec); refused != nil {
		return refused
	}
	if refused := touchesReserved(pod.Spec, after.Spec); refused != nil {
		return refused
	}
	pod.Labels, pod.Annotations, pod.Spec = after.Labels, after.Annotations, after.Spec
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	main := mainOf(pod)
	if main == nil {
		return oci.Failed("spec.runtime.pod.template removes the container %s, which runs the program; keep it", Container)
	}
	main.Image, main.Command, main.Args = given.Image, given.Command, nil
	main.EnvFrom = withOwn(main.EnvFrom, given.EnvFrom)
	return nil
}

// withOwn appends own, which is the Secret with the spec's environment, to named, the envFrom list after the merge with a template. A list in the template
// replaces the generated list, so the spec's environment would be lost without withOwn. own is last, because the last source of a variable takes precedence. If
// the template sets the list to null, the spec's environment is removed too.
func withOwn(named, own []corev1.EnvFromSource) []corev1.EnvFromSource {
	if named == nil || len(own) == 0 || len(named) > 0 && reflect.DeepEqual(named[len(named)-1], own[0]) {
		return named
	}
	return append(named, own...)
}

// loads rejects a template that sets a variable such as LD_PRELOAD in a container. Such a variable changes how every program is loaded, so the command of the
// container would no longer determine what is executed.
func loads(spec corev1.PodSpec) *facts.StartError {
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, variable := range container.Env {
			if shim.Refused(variable.Name) {
				return oci.Failed("the variable %s is not permitted, because it changes how every program is loaded; remove it from the container %s of spec.runtime.pod.template",
					variable.Name, container.Name)
			}
		}
	}
	return nil
}
