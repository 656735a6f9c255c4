// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/docker"
)

// expectSpecifiedState expects the actual sessions and containers, and the statuses of the Instances, to match the specs.
func (w *world) expectSpecifiedState(ctx context.Context, g Gomega) {
	var list v1alpha1.InstanceList
	g.Expect(w.api.List(ctx, &list)).To(Succeed())
	sessions, containers := []string{}, []string{}
	stands := map[string][]string{}
	for n := range list.Items {
		i := &list.Items[n]
		name := i.Namespace + "/" + i.Name
		g.Expect(i.DeletionTimestamp).To(BeNil(), name)
		g.Expect(kstatusOf(g, i)).To(Equal(status.CurrentStatus), "%s: %+v", name, i.Status.Conditions)
		if i.Labels[v1alpha1.LabelDiscoveredBy] != "" {
			g.Expect(i.Status.Process).NotTo(BeNil(), "%s must have a running session or container", name)
			what := sessionOrContainer(i)
			stands[what] = append(stands[what], name)
			continue
		}
		if i.Spec.State == v1alpha1.StateStopped {
			g.Expect(i.Status.Process).To(BeNil(), name)
			g.Expect(i.Spec.TTLSecondsAfterStopped).To(BeNil(), "%s must be deleted after its TTL", name)
			continue
		}
		g.Expect(i.Status.Process).NotTo(BeNil(), name)
		if i.Spec.Runtime.Type == v1alpha1.RuntimeTmux {
			sessions = append(sessions, i.Name)
		} else {
			containers = append(containers, i.Status.Process.ContainerID)
		}
	}
	there, foreign := w.sessions(g)
	g.Expect(there).To(ConsistOf(sessions), "sessions of Berth")
	for _, name := range foreign {
		g.Expect(stands["session "+name]).To(HaveLen(1), "session %s must have one object: %v", name, stands)
	}
	inEngine, found := w.containers(ctx, g)
	g.Expect(inEngine).To(ConsistOf(containers), "containers of Berth")
	for _, id := range found {
		g.Expect(stands["container "+id]).To(HaveLen(1), "container %s must have one object: %v", id, stands)
	}
	g.Expect(stands).To(HaveLen(len(foreign)+len(found)), "every object must have an existing session or container")
}

// sessionOrContainer returns the session or container that a discovered Instance represents.
func sessionOrContainer(i *v1alpha1.Instance) string {
	if i.Spec.Runtime.Type == v1alpha1.RuntimeTmux {
		return "session " + i.Spec.Runtime.Tmux.Session
	}
	return "container " + i.Status.Process.ContainerID
}

func kstatusOf(g Gomega, object kube.Object) status.Status {
	fields, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	g.Expect(err).NotTo(HaveOccurred())
	result, err := status.Compute(&unstructured.Unstructured{Object: fields})
	g.Expect(err).NotTo(HaveOccurred())
	return result.Status
}

// sessions returns the names of the sessions that Berth started, and of the foreign sessions.
func (w *world) sessions(g Gomega) (own, foreign []string) {
	output, err := w.tmux("list-sessions", "-F", "#{session_name}")
	if err != nil {
		g.Expect(output).To(Or(ContainSubstring("no server running"), ContainSubstring("error connecting")))
		return nil, nil
	}
	for name := range strings.FieldsSeq(output) {
		if strings.HasPrefix(name, "claude-") {
			foreign = append(foreign, name)
		} else {
			own = append(own, name)
		}
	}
	return own, foreign
}

// containers returns the IDs of the running containers that Berth started, and of the running foreign containers.
func (w *world) containers(ctx context.Context, g Gomega) (own, foreign []string) {
	if w.engine == nil {
		return nil, nil
	}
	list, err := w.engine.ContainerList(ctx, client.ContainerListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range list.Items {
		if list.Items[i].Labels[docker.LabelUID] == "" {
			foreign = append(foreign, list.Items[i].ID)
		} else {
			own = append(own, list.Items[i].ID)
		}
	}
	return own, foreign
}

// describeForeign returns a sorted description of the foreign sessions, each with the PID of its process, and of the running foreign containers.
func (w *world) describeForeign(ctx context.Context, g Gomega) []string {
	var all []string
	output, err := w.tmux("list-panes", "-a", "-F", "#{session_name} #{pane_pid}")
	if err != nil {
		output = ""
	}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "claude-") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	_, containers := w.containers(ctx, g)
	all = append(all, containers...)
	slices.Sort(all)
	return all
}

// deleteAll deletes all discoveries and Instances and waits until the Instances are gone.
func (w *world) deleteAll(t *testing.T) {
	t.Helper()
	for _, kind := range []kube.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.Instance{}} {
		for _, namespace := range []string{metav1.NamespaceDefault, otherNamespace} {
			w.Expect(w.api.DeleteAllOf(t.Context(), kind, kube.InNamespace(namespace))).To(Succeed())
		}
	}
	w.Eventually(func(g Gomega) {
		var instances v1alpha1.InstanceList
		g.Expect(w.api.List(t.Context(), &instances)).To(Succeed())
		names := []string{}
		for i := range instances.Items {
			names = append(names, fmt.Sprintf("%s/%s", instances.Items[i].Namespace, instances.Items[i].Name))
		}
		g.Expect(names).To(BeEmpty())
	}).Should(Succeed())
}
