// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// countConnections listens where the multiplexer of a Pod with that address listens, and closes each connection.
func countConnections(address string) *atomic.Int32 {
	GinkgoHelper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(transport.Port)))
	Expect(err).NotTo(HaveOccurred())
	count, ended := &atomic.Int32{}, make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_ = conn.Close()
		}
	}()
	DeferCleanup(func() {
		Expect(listener.Close()).To(Succeed())
		<-ended
	})
	return count
}

var _ = Describe("the namespaces of two teams", func() {
	var (
		victim, intruder string
		testNode         *node
	)
	BeforeEach(func(ctx context.Context) {
		testNode = newNode()
		victim, intruder = newNamespace(ctx), newNamespace(ctx)
	})

	// forge creates a running Pod in the namespace of the intruder that claims to be the next incarnation of the object of p. Its annotation names an object of
	// the intruder, so that a search for the processes of deleted objects associates the Pod with that object.
	forge := func(ctx context.Context, p *corev1.Pod, name, address string) {
		GinkgoHelper()
		forged := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: intruder, Name: strings.TrimSuffix(p.Name, "-1") + "-2",
				Labels:      map[string]string{pod.LabelManagedBy: pod.ManagedBy, pod.LabelUID: p.Labels[pod.LabelUID], pod.LabelIncarnation: "2"},
				Annotations: map[string]string{"berth.dev/name": "instances/" + intruder + "/" + name},
			},
			Spec: *p.Spec.DeepCopy(),
		}
		forged.Spec.NodeName = ""
		Expect(k8s.Create(ctx, forged)).To(Succeed())
		testNode.run(ctx, forged, address)
		DeferCleanup(func(ctx context.Context) {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, forged, &client.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))).To(Succeed())
		})
	}

	It("keep the environment of a language server from a Pod that only claims to run it", func(ctx context.Context) {
		server := &v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: victim, Name: "go"}}
		server.Spec.Language, server.Spec.Workspace.Folders = "go", []string{"/src"}
		server.Spec.Process.Command = []string{"gopls"}
		server.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", Value: "hidden"}}
		server.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podImage()}
		Expect(k8s.Create(ctx, server)).To(Succeed())
		own := waitForPod(ctx, server, "1")

		address := func(n int) string { return fmt.Sprintf("127.%d.77.%d", 1+os.Getpid()%254, n) }
		toOwn, toForged := countConnections(address(1)), countConnections(address(2))
		testNode.run(ctx, own, address(1))
		forge(ctx, own, "mine", address(2))

		stopManager() // the next manager does not know which namespace the UID belongs to
		stopManager = startManager()
		mine := newInstance(intruder, "mine", "agent")
		mine.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: podImage(func(p *v1alpha1.PodRuntime) {
			p.Volumes = []apiruntime.RawExtension{{Raw: []byte(`{"name": "tmp", "emptyDirr": {}}`)}} // the Instance never starts, so it searches again and again
		})}
		Expect(k8s.Create(ctx, mine)).To(Succeed())
		Eventually(func(g Gomega) {
			get(ctx, g, mine)
			g.Expect(mine.Status.Conditions).NotTo(BeEmpty(), "the manager has reconciled the Instance")
		}).Should(Succeed())

		before := toOwn.Load()
		Eventually(func() (int32, error) {
			if toForged.Load() > 0 {
				return 0, StopTrying("the manager has connected to the forged Pod")
			}
			return toOwn.Load() - before, nil
		}).Should(BeNumerically(">=", 12), "the manager connects again and again, because no multiplexer answers") // the Instance searches several times meanwhile
		Expect(waitForStalled(ctx, mine, v1alpha1.ReasonStartFailed)).To(ContainSubstring("emptyDirr"), "the Instance does not wait for the process of another object")
		testNode.end(ctx, own, 1)
	})
})
