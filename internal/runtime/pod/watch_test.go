// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/background"
)

// TestGiveUp_BacksOffForEachPod has an API server that rejects the deletion of one of two Pods.
func TestGiveUp_BacksOffForEachPod(t *testing.T) {
	g := NewWithT(t)
	var rejected, before, lines atomic.Int32 // before: the attempts for the Pod rejected before the one for the other Pod
	done := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, podName("rejected", "web", 3)) {
			rejected.Add(1)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		before.Store(rejected.Load())
		done <- struct{}{}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	g.Expect(err).NotTo(HaveOccurred())
	r := &Runtime{client: api, store: newStore(), doubts: newDoubts(), tasks: background.New(), log: funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{})}
	for _, uid := range []types.UID{"rejected", "other"} {
		invalid := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}}
		p := podWith(corev1.PodPending, invalid, func(p *corev1.Pod) {
			p.Name, p.UID, p.Labels = podName(uid, "web", 3), uid, map[string]string{LabelUID: string(uid), LabelIncarnation: "3"}
		})
		g.Expect(hopeless(p)).To(HaveField("Reason", v1alpha1.ReasonStartFailed))
		r.store.put(p, true)
		r.doubts.Add(uid)
	}
	r.tasks.Go(r.giveUpLoop)
	g.Eventually(done).WithTimeout(30 * time.Second).Should(Receive())
	g.Expect(before.Load()).To(BeEquivalentTo(1), "a Pod that cannot be deleted does not delay the others")
	g.Eventually(rejected.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">=", 3))
	g.Expect(r.doubts.NumRequeues("rejected")).To(BeNumerically(">=", 2))
	g.Expect(lines.Load()).To(BeEquivalentTo(1), "the failure is logged once")
	r.doubts.ShutDown()
	r.tasks.Close()
}
