// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// addPodSpecs adds the specs of objects in Pods, from start to deletion.
func addPodSpecs() {
	It("keeps the address of a DevServer across restarts and the loss of its Pod", func(ctx context.Context) {
		tenant := devServer(ctx, "server")
		Expect(fetch(ctx, tenant)).To(Succeed())
		elsewhere := tenant.open(ctx)
		Expect(get(ctx, elsewhere)).To(Succeed())
		Expect(echo(ctx, elsewhere, "changed")).To(Equal("changed"))
		tenant.restart(ctx)
		Expect(fetch(ctx, tenant)).To(Succeed())
		Eventually(ctx, get).WithArguments(elsewhere).Should(Succeed(), "berth open reaches the new incarnation")

		live := tenant.pods(ctx)
		Expect(live).To(HaveLen(1))
		before := tenant.object.GetProcessStatus().Incarnation
		Expect(clientset.CoreV1().Pods(tenant.namespace).Delete(ctx, live[0].Name, metav1.DeleteOptions{})).To(Succeed())
		tenant.waitUntilReady(ctx, before+1)
		tenant.expectLost(before)
		Expect(fetch(ctx, tenant)).To(Succeed())
		Expect(tenant.startCount()).To(BeEquivalentTo(before + 1))
		tenant.deleteAndCheck(ctx)
	}, SpecTimeout(2*timeout))

	It("keeps the claim of an Instance across its Pods", func(ctx context.Context) {
		tenant := newTenant(ctx, &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "session"}})
		claims := func() (all []corev1.PersistentVolumeClaim) {
			list := &corev1.PersistentVolumeClaimList{}
			Expect(k8s.List(ctx, list, client.InNamespace(tenant.namespace))).To(Succeed())
			return list.Items
		}
		before := claims()
		Expect(before).To(HaveLen(1))
		tenant.restart(ctx)
		Expect(claims()).To(ConsistOf(HaveField("UID", before[0].UID)))
		tenant.deleteAndCheck(ctx)
	}, SpecTimeout(2*timeout))

	It("supports berth send and berth attach for the terminal of an Instance", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		o := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "terminal"}}
		o.Spec.Process.Command = []string{"/workload", "terminal"}
		o.Spec.RestartPolicy = v1alpha1.RestartNever
		o.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "localhost/berth/workload:test", ImagePullPolicy: v1alpha1.PullNever}}
		Expect(k8s.Create(ctx, o)).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (string, error) {
			err := k8s.Get(ctx, client.ObjectKeyFromObject(o), o)
			return o.Status.AttachCommand, err
		}).ShouldNot(BeEmpty())
		mustRun(ctx, "berth", "send", "-n", namespace, "instance/terminal", "from far")
		Eventually(ctx, func(ctx context.Context) (string, error) {
			return run(ctx, "berth", "logs", "-n", namespace, "instance/terminal")
		}).Should(ContainSubstring("got <from far>"))

		taken := clusterCommand(ctx, "berth", "attach", "-n", namespace, "instance/terminal")
		keys, err := taken.StdinPipe()
		Expect(err).NotTo(HaveOccurred())
		shown, err := taken.StdoutPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(taken.Start()).To(Succeed())
		_, err = io.WriteString(keys, "bye\r")
		Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(shown)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).To(ContainSubstring("farewell"))
		Expect(taken.Wait()).To(Succeed())
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			g.Expect(o.Status.LastExit).To(HaveValue(HaveField("ExitCode", HaveValue(BeEquivalentTo(5)))))
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, o)).To(Succeed())
		waitUntilGone(ctx, o)
	}, SpecTimeout(2*timeout))

	It("runs a StrategyRun and records its outcome", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		for code, want := range map[int]v1alpha1.RunOutcome{0: v1alpha1.OutcomeSucceeded, 3: v1alpha1.OutcomeFailed} {
			strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("exit-%d", code)}}
			strategy.Spec.Process.Command = []string{"/workload", "exit", fmt.Sprint(code)}
			strategy.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "localhost/berth/workload:test", ImagePullPolicy: v1alpha1.PullNever}}
			Expect(k8s.Create(ctx, strategy)).To(Succeed())
			run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: strategy.Name}}
			run.Spec.StrategyRef.Name = strategy.Name
			Expect(k8s.Create(ctx, run)).To(Succeed())
			Eventually(ctx, func(g Gomega, ctx context.Context) {
				g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(run), run)).To(Succeed())
				g.Expect(run.Status.Outcome).To(Equal(want))
			}).Should(Succeed())
			Expect(k8s.Delete(ctx, run)).To(Succeed())
			waitUntilGone(ctx, run)
		}
	}, SpecTimeout(2*timeout))
}

// fetch requests a page from a DevServer at the IP address of its Service. The test cannot use the URL of the DevServer, whose host name resolves only in the
// DNS of the cluster.
func fetch(ctx context.Context, t *tenant) error {
	server, ok := t.object.(*v1alpha1.DevServer)
	if !ok {
		return fmt.Errorf("%T has no address", t.object)
	}
	list := &corev1.ServiceList{}
	if err := k8s.List(ctx, list, client.InNamespace(t.namespace)); err != nil {
		return err
	}
	if len(list.Items) != 1 || !strings.Contains(server.Status.URL, "//"+list.Items[0].Name+"."+t.namespace+".svc") {
		return fmt.Errorf("the URL %q does not contain the name of the only Service; the namespace has %d Services", server.Status.URL, len(list.Items))
	}
	service := &list.Items[0]
	address := net.JoinHostPort(service.Spec.ClusterIP, fmt.Sprint(service.Spec.Ports[0].Port))
	// Retry, because the cluster, not Berth, updates the endpoints of the Service.
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := get(deadline, "http://"+address+"/")
		if err == nil {
			return nil
		}
		select {
		case <-deadline.Done():
			return err
		case <-time.After(poll):
		}
	}
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return err
}
