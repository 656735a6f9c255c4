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

// restWindow is the minimum time for which the idle manager is observed. With more than 333 servers the time is longer, because the manager checks each
// server less often if there are many servers.
const restWindow = 10 * time.Second

// TestIdleManager_InMemoryProcesses measures a manager with 200 DevServers whose processes exist in memory only: the cost of the manager itself.
func TestIdleManager_InMemoryProcesses(t *testing.T) {
	c := startManager(t, "", 0)
	namespace := newNamespace(t)
	serveAllPorts(t, namespace)
	measureAtRest(t, c, namespace, 200, "serve")
}

// TestIdleManager_HostProcesses measures a manager with 30 DevServers that run real servers.
func TestIdleManager_HostProcesses(t *testing.T) {
	c := startManager(t, stateDirectory(t), 0)
	namespace := newNamespace(t)
	measureAtRest(t, c, namespace, 30, workloadPath, "serve")
}

// measureAtRest creates DevServers, waits until the manager stops writing, and then measures the memory, CPU time and API writes of the idle manager.
func measureAtRest(t *testing.T, c *managerProcess, namespace string, n int, command ...string) {
	t.Helper()
	g := NewWithT(t)
	began := time.Now()
	inParallel(t, n, 16, func(i int) error {
		server := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("rest-%04d", i)}}
		server.Spec.Process.Command = command
		return k8s.Create(t.Context(), server)
	})
	g.Eventually(func() int { return readyServers(t, namespace) }).WithTimeout(patience).WithPolling(500 * time.Millisecond).Should(Equal(n))
	addFigure(fmt.Sprintf("%d DevServers: create until all are ready", n), "%.1f s", time.Since(began).Seconds())
	g.Eventually(func() int {
		before := countWrites(t)
		pollOnce(6 * time.Second) // longer than the check interval of a ready server if there are at most 100 servers
		return countWrites(t) - before
	}).WithTimeout(patience).Should(BeZero(), "the manager must stop writing")

	var written int
	var share float64
	for range rounds { // measure again if a late write falls into the first window
		if written, share = measureWindow(t, c, max(restWindow, time.Duration(n)*30*time.Millisecond)); written == 0 {
			break
		}
	}
	what := fmt.Sprintf("%d DevServers at rest: ", n)
	expectAtMost(t, what+"memory of the manager", c.memory(), 100, 1.5, " MiB")
	expectAtMost(t, what+"share of a core", share, 2, 3, " %")
	expectAtMost(t, what+"API writes in 10 s or more", float64(written), 0, 1, "")
	g.Expect(readyServers(t, namespace)).To(Equal(n))
	deleteObjects(t, namespace)
}

// measureWindow observes the manager for some time, which the parameter long specifies. It returns the number of API writes, and the manager's share of one
// core in percent.
func measureWindow(t *testing.T, c *managerProcess, long time.Duration) (written int, share float64) {
	t.Helper()
	before, computed, from := countWrites(t), c.stats().CPU, time.Now()
	pollOnce(long)
	share = 100 * float64(c.stats().CPU-computed) / float64(time.Since(from))
	return countWrites(t) - before, share
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

// countWrites returns how many requests the API server has received so far that change Berth's objects or create events.
func countWrites(t *testing.T) (n int) {
	t.Helper()
	g := NewWithT(t)
	clientset, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	data, err := clientset.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	for line := range bytes.Lines(data) {
		text := string(line)
		if !strings.HasPrefix(text, "apiserver_request_total{") || !isWriteMetric(text) {
			continue
		}
		fields := strings.Fields(text)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		g.Expect(err).NotTo(HaveOccurred())
		n += int(value)
	}
	return n
}

// isWriteMetric reports whether a line of the API server's metrics counts writes of Berth.
func isWriteMetric(line string) bool {
	ours := strings.Contains(line, `group="berth.dev"`) || strings.Contains(line, `resource="events"`)
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		if ours && strings.Contains(line, `verb="`+verb+`"`) {
			return true
		}
	}
	return false
}

// serveAllPorts serves HTTP on every port that is allocated to a DevServer of the namespace, in place of its process.
func serveAllPorts(t *testing.T, namespace string) {
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
