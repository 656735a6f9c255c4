// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// podServer fakes the log endpoint of Pods. The log of a Pod contains its name.
func podServer(t *testing.T, f *fixture) (asked func() []string) {
	var mu sync.Mutex
	var queries []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		queries = append(queries, r.URL.Path+"?"+r.URL.RawQuery)
		_, _ = io.WriteString(w, "said by "+path.Base(path.Dir(r.URL.Path))+"\n")
	}))
	t.Cleanup(server.Close)
	f.app.connect = func(*connectionFlags) (*connection, error) {
		return &connection{config: &rest.Config{Host: server.URL}, client: f.api, namespace: "default"}, nil
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), queries...)
	}
}

func webInPod(server *v1alpha1.DevServer) {
	server.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: "web"}}
}

func webPod(incarnation string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-" + incarnation,
		Labels: map[string]string{pod.LabelUID: "uid-web", pod.LabelIncarnation: incarnation}}}
}

func TestLogs_ReadsPodLogFromAPIServer(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(webInPod), webPod("9"), webPod("10"))
	asked := podServer(t, f)
	g.Expect(f.run(t.Context(), "logs", "--tail", "5", "devserver/web")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(Equal("said by web-10\n"), "the log of the newest Pod")
	g.Expect(asked()).To(ConsistOf("/api/v1/namespaces/default/pods/web-10/log?container=main&tailLines=5"))

	broken := webPod("11")
	broken.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "clone", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128}}}}
	f = newFixture(web(webInPod), broken)
	asked = podServer(t, f)
	g.Expect(f.run(t.Context(), "logs", "devserver/web")).To(BeZero(), f.err.String())
	g.Expect(asked()).To(ConsistOf("/api/v1/namespaces/default/pods/web-11/log?container=clone"), "the init container that prevented the start of the program")

	none := newFixture(web(webInPod))
	podServer(t, none)
	g.Expect(none.run(t.Context(), "logs", "devserver/web")).To(Equal(1))
	g.Expect(none.err.String()).To(ContainSubstring("the object has no Pod"))
}

func TestLogs_FollowContinuesWithNextPod(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(webInPod), webPod("1"))
	podServer(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- f.run(ctx, "logs", "-f", "devserver/web") }()
	g.Eventually(f.out.String, timeout).Should(Equal("said by web-1\n"))
	g.Expect(f.api.Create(ctx, webPod("2"))).To(Succeed())
	g.Eventually(f.out.String, timeout).Should(Equal("said by web-1\nsaid by web-2\n"))
	cancel()
	g.Eventually(ended, timeout).Should(Receive())
}
