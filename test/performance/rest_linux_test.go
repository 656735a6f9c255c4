// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// restWindow is how long the manager is watched while nothing happens, at least; of many servers each is looked at more rarely.
const restWindow = 10 * time.Second

// TestRestInMemory has a manager hold 200 DevServers whose processes are in memory only: what the manager itself costs.
func TestRestInMemory(t *testing.T) {
	c := startManager(t, "", 0)
	namespace := newNamespace(t)
	answerEverywhere(t, namespace)
	atRest(t, c, namespace, 200, "serve")
}

// TestRestOnTheHost has a manager hold 30 DevServers that are real servers.
func TestRestOnTheHost(t *testing.T) {
	c := startManager(t, stateDirectory(t), 0)
	namespace := newNamespace(t)
	atRest(t, c, namespace, 30, workloadPath, "serve")
}

// atRest creates DevServers, waits until nothing has to be done any more, and then watches what the manager does all the same.
func atRest(t *testing.T, c *child, namespace string, n int, command ...string) {
	t.Helper()
	g := NewWithT(t)
	began := time.Now()
	inParallel(t, n, 16, func(i int) error {
		server := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("rest-%04d", i)}}
		server.Spec.Process.Command = command
		return k8s.Create(t.Context(), server)
	})
	g.Eventually(func() int { return readyServers(t, namespace) }).WithTimeout(patience).WithPolling(500 * time.Millisecond).Should(Equal(n))
	note(fmt.Sprintf("%d DevServers: create until all are ready", n), "%.1f s", time.Since(began).Seconds())
	g.Eventually(func() int {
		before := writes(t)
		pollOnce(6 * time.Second) // longer than a look at a server that is ready
		return writes(t) - before
	}).WithTimeout(patience).Should(BeZero(), "the manager comes to rest")

	var written int
	var share float64
	for range rounds { // something that is late may still be in the first window
		if written, share = window(t, c, max(restWindow, time.Duration(n)*30*time.Millisecond)); written == 0 {
			break
		}
	}
	what := fmt.Sprintf("%d DevServers at rest: ", n)
	atMost(t, what+"memory of the manager", c.memory(), 100, 1.5, " MiB")
	atMost(t, what+"share of a core", share, 2, 3, " %")
	atMost(t, what+"API writes in 10 s or more", float64(written), 0, 1, "")
	g.Expect(readyServers(t, namespace)).To(Equal(n))
	empty(t, namespace)
}

// window watches a manager for a while: what it writes, and its share of a core in percent.
func window(t *testing.T, c *child, long time.Duration) (written int, share float64) {
	t.Helper()
	before, computed, from := writes(t), c.stats().CPU, time.Now()
	pollOnce(long)
	share = 100 * float64(c.stats().CPU-computed) / float64(time.Since(from))
	return writes(t) - before, share
}

func readyServers(t *testing.T, namespace string) (n int) {
	t.Helper()
	var list v1alpha1.DevServerList
	NewWithT(t).Expect(k8s.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
	for i := range list.Items {
		if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, v1alpha1.ConditionReady) {
			n++
		}
	}
	return n
}

// writes is how many requests the API server has had so far that change our objects or tell events.
func writes(t *testing.T) (n int) {
	t.Helper()
	g := NewWithT(t)
	clientset, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	data, err := clientset.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	for line := range bytes.Lines(data) {
		text := string(line)
		if !strings.HasPrefix(text, "apiserver_request_total{") || !changes(text) {
			continue
		}
		fields := strings.Fields(text)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		g.Expect(err).NotTo(HaveOccurred())
		n += int(value)
	}
	return n
}

// changes says whether a line of the API server's metrics counts writes of ours.
func changes(line string) bool {
	ours := strings.Contains(line, `group="berth.dev"`) || strings.Contains(line, `resource="events"`)
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		if ours && strings.Contains(line, `verb="`+verb+`"`) {
			return true
		}
	}
	return false
}

// answerEverywhere answers HTTP on every port that a DevServer of the namespace is given, in place of its process.
func answerEverywhere(t *testing.T, namespace string) {
	t.Helper()
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.NotFoundHandler()}
	var serving sync.WaitGroup
	open := map[int32]bool{}
	var listenConfig net.ListenConfig
	watchAll(t, namespace, &v1alpha1.DevServerList{}, func(object client.Object) {
		dev, ok := object.(*v1alpha1.DevServer)
		if !ok || dev.Status.Port == 0 || open[dev.Status.Port] {
			return
		}
		listener, err := listenConfig.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", dev.Status.Port))
		if err != nil {
			t.Errorf("answer for %s: %v", dev.Name, err)
			return
		}
		open[dev.Status.Port] = true
		serving.Go(func() { _ = server.Serve(listener) })
	})
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
}
