// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// nodeCount is the number of simulated nodes; podWorkers is the number of Pods that are handled in parallel.
const (
	nodeCount  = 10
	podWorkers = 8
)

// simulatedNodes simulates nodes. A Pod runs as soon as it is created, and all Pods answer at the same address.
type simulatedNodes struct {
	namespace string
	port      int32
	pods      chan *corev1.Pod
}

// simulateNodes simulates nodes until the test ends.
func simulateNodes(t *testing.T) *simulatedNodes {
	t.Helper()
	g := NewWithT(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "nodes-"}}
	g.Expect(k8s.Create(t.Context(), namespace)).To(Succeed())
	n := &simulatedNodes{namespace: namespace.Name, port: servePods(t), pods: make(chan *corev1.Pod, 1<<16)}
	for i := range nodeCount {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
		g.Expect(client.IgnoreAlreadyExists(k8s.Create(t.Context(), node))).To(Succeed())
	}
	var working sync.WaitGroup
	for range podWorkers {
		working.Go(func() {
			for pod := range n.pods {
				if err := n.handlePod(pod); err != nil {
					t.Errorf("simulate the node of Pod %s: %v", pod.Name, err)
				}
			}
		})
	}
	t.Cleanup(func() { // runs after the watch is closed, because cleanups run in reverse order
		close(n.pods)
		working.Wait()
	})
	watchAll(t, n.namespace, &corev1.PodList{}, func(object client.Object) {
		if pod, ok := object.(*corev1.Pod); ok {
			n.pods <- pod
		}
	})
	return n
}

func nodeName(i int) string { return fmt.Sprintf("simulated-%d", i) }

// servePods starts one HTTP server that answers for all Pods, and returns the port of this server.
func servePods(t *testing.T) int32 {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.NotFoundHandler()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return int32(listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
}

// server returns a DevServer in a Pod on one of the nodes.
func (n *simulatedNodes) server(i int) *v1alpha1.DevServer {
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: fmt.Sprintf("dev-%05d", i)}}
	dev.Spec.Process.Command = []string{"serve"}
	dev.Spec.Port = ptr.To(n.port)
	template := fmt.Appendf(nil, `{"spec":{"nodeName":%q}}`, nodeName(i%nodeCount))
	dev.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{
		Image: "localhost/simulated", Template: &apiruntime.RawExtension{Raw: template},
	}}
	return dev
}

// handlePod does what a kubelet does with a new or terminating Pod.
func (n *simulatedNodes) handlePod(seen *corev1.Pod) error {
	ending, running := seen.DeletionTimestamp != nil, seen.Status.Phase == corev1.PodRunning
	var err error
	switch {
	case ending && (running || seen.Status.Phase == corev1.PodPending):
		err = n.writePodStatus(seen, corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, FinishedAt: metav1.Now()}})
		if err == nil {
			err = k8s.Delete(backgroundContext, seen, client.GracePeriodSeconds(0))
		}
	case !ending && seen.Status.Phase == corev1.PodPending:
		err = n.writePodStatus(seen, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the Pod has changed or is gone; the watch delivers its newer version
	}
	return err
}

// writePodStatus writes the Pod status that a kubelet reports.
func (n *simulatedNodes) writePodStatus(seen *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) error {
	before := seen.DeepCopy()
	seen.Status.Phase, seen.Status.PodIP = phase, "127.0.0.1"
	seen.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	seen.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Container, Image: "localhost/simulated", ImageID: "simulated", Ready: state.Running != nil, State: state}}
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	seen.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: ready}, {Type: corev1.PodReady, Status: ready},
	}
	return k8s.Status().Patch(backgroundContext, seen, client.MergeFrom(before))
}
