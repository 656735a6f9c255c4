// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// proxyPace is the interval between two requests: 200 requests per second.
	proxyPace = 5 * time.Millisecond
	// proxySamples is the number of requests that a round sends in each of three ways: through the proxy, directly, and through a program that only copies.
	proxySamples  = 400
	proxyRestarts = 20
	// proxyServed is the minimum number of requests that must be answered between two restarts.
	proxyServed = 20
)

// TestProxy_LatencyAndRestarts sends requests to a DevServer alternately through its proxy, directly, and through a program that only copies, and compares
// their times. Then it restarts the server repeatedly under load, and no request may fail.
func TestProxy_LatencyAndRestarts(t *testing.T) {
	g := NewWithT(t)
	startManager(t, stateDirectory(t), 0)
	dev := proxiedServer(t)
	through, direct, copied := address(dev.Status.Port), address(dev.Status.BackendPort), relayTo(t, dev.Status.BackendPort)
	var added, least, throughs, directs []float64
	for range rounds {
		proxied, itself, relayed := requestTimesInTurns(t, through, direct, copied)
		added, least = append(added, median(proxied)-median(itself)), append(least, median(relayed)-median(itself))
		throughs, directs = append(throughs, median(proxied)), append(directs, median(itself))
	}
	addFigure("DevServer, a direct request, p50", "%.0f µs", median(directs))
	addFigure("DevServer, a request through its proxy, p50", "%.0f µs", median(throughs))
	addFigure("DevServer, added by a program that only copies, p50", "%.0f µs", median(least))
	expectAtMost(t, "DevServer, added by the proxy, p50", median(added), 300, 3, " µs")
	compareThroughput(t, through, direct, copied)

	l := startGetLoad(t, through)
	for i := range proxyRestarts {
		l.waitForResponses(proxyServed)
		g.Expect(restartServer(t, dev, fmt.Sprintf("under-load-%d", i))).To(Succeed())
	}
	l.waitForResponses(proxyServed)
	failures, times := l.stop()
	g.Expect(failures).To(BeEmpty())
	addFigure("DevServer, GET under 200 requests/s over 20 restarts: p50, p99, longest", "%.2f ms, %.0f ms, %.0f ms of %d",
		median(times), percentile(times, 99), percentile(times, 100), len(times))
	expectAtMost(t, "DevServer, GETs that failed over 20 restarts under 200 requests/s", float64(len(failures)), 0, 1, "")
}

// compareThroughput measures the throughput at each address in turn. Each of 50 connections sends its next GET as soon as the previous one is
// answered. The client, the server and the proxy share the cores of the machine.
func compareThroughput(t *testing.T, through, direct, copied string) {
	t.Helper()
	var proxied, itself, relayed, ratios, least []float64
	for i := range rounds {
		proxied, itself, relayed = append(proxied, throughput(t, through)), append(itself, throughput(t, direct)), append(relayed, throughput(t, copied))
		ratios, least = append(ratios, itself[i]/proxied[i]), append(least, relayed[i]/proxied[i])
	}
	addFigure("DevServer, GETs/s on 50 connections: direct, through its proxy, through a program that only copies", "%.0f, %.0f, %.0f", median(itself), median(proxied), median(relayed))
	addFigure("DevServer, GETs/s on 50 connections, direct / through its proxy", "%.2f×", median(ratios))
	expectAtMost(t, "DevServer, GETs/s on 50 connections, through a program that only copies / through its proxy", median(least), 1.25, 2, "×")
}

// throughput returns the number of GETs per second that are answered on 50 connections.
func throughput(t *testing.T, url string) float64 {
	t.Helper()
	g := NewWithT(t)
	out, err := exec.Command(workloadPath, "load", url).Output()
	g.Expect(err).NotTo(HaveOccurred())
	answered, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answered).To(BeNumerically(">", 0))
	return answered
}

func address(port int32) string { return fmt.Sprintf("http://127.0.0.1:%d/", port) }

// proxiedServer returns a ready DevServer behind a proxy.
func proxiedServer(t *testing.T) *v1alpha1.DevServer {
	t.Helper()
	g := NewWithT(t)
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(t), Name: "proxied"}}
	dev.Spec.Process.Command = []string{workloadPath, "serve"}
	dev.Spec.Proxy = v1alpha1.ProxyEnabled
	g.Expect(k8s.Create(t.Context(), dev)).To(Succeed())
	g.Eventually(func() (bool, error) { return serverIsReady(t.Context(), dev, "") }).WithTimeout(patience).
		WithPolling(proxyPace).Should(BeTrue())
	return dev
}

// restartServer restarts a DevServer and waits until it is ready again.
func restartServer(t *testing.T, dev *v1alpha1.DevServer, token string) error {
	patch := fmt.Appendf(nil, `{"spec":{"restartToken":%q}}`, token)
	if err := k8s.Patch(t.Context(), dev.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	look := time.NewTicker(4 * proxyPace)
	defer look.Stop()
	for {
		if ready, err := serverIsReady(ctx, dev, token); ready || err != nil {
			return err
		}
		<-look.C
	}
}

func serverIsReady(ctx context.Context, dev *v1alpha1.DevServer, token string) (bool, error) {
	if err := k8s.Get(ctx, client.ObjectKeyFromObject(dev), dev); err != nil {
		return false, err
	}
	ready := meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady)
	return ready && dev.Status.ObservedRestartToken == token, nil
}

// relayTo starts a program that relays to the server's port, and returns the address of this program.
func relayTo(t *testing.T, port int32) string {
	t.Helper()
	g := NewWithT(t)
	cmd := exec.Command(workloadPath, "relay", fmt.Sprintf("127.0.0.1:%d", port))
	in, err := cmd.StdinPipe()
	g.Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	said, err := bufio.NewReader(out).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	return "http://" + strings.TrimSpace(said) + "/"
}

// requestTimesInTurns sends requests in rounds, one to each address, at proxyPace, and returns the time of each request in microseconds.
func requestTimesInTurns(t *testing.T, through, direct, copied string) (proxied, itself, relayed []float64) {
	t.Helper()
	g := NewWithT(t)
	browser := &http.Client{Timeout: patience, Transport: &http.Transport{}}
	defer browser.CloseIdleConnections()
	pace := time.NewTicker(proxyPace)
	defer pace.Stop()
	for range proxySamples {
		for url, times := range map[string]*[]float64{through: &proxied, direct: &itself, copied: &relayed} {
			<-pace.C // pause before every request, because a program that was just busy answers faster
			took, err := timeGet(browser, url)
			g.Expect(err).NotTo(HaveOccurred())
			*times = append(*times, float64(took)/float64(time.Microsecond))
		}
	}
	return proxied, itself, relayed
}

// timeGet sends a GET and returns the time until the complete response.
func timeGet(browser *http.Client, url string) (time.Duration, error) {
	began := time.Now()
	response, err := browser.Get(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	took := time.Since(began)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "hello")) {
		err = fmt.Errorf("GET %s: %s: %s", url, response.Status, body)
	}
	return took, err
}

// getLoad sends a GET every proxyPace without waiting for the responses to earlier ones.
type getLoad struct {
	t      *testing.T
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu       sync.Mutex
	failures []string
	times    []float64
}

func startGetLoad(t *testing.T, url string) *getLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &getLoad{t: t, cancel: cancel}
	browser := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	l.all.Go(func() {
		pace := time.NewTicker(proxyPace)
		defer pace.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
				l.all.Go(func() { l.get(browser, url) })
			}
		}
	})
	t.Cleanup(func() {
		l.stop()
		browser.CloseIdleConnections()
	})
	return l
}

func (l *getLoad) get(browser *http.Client, url string) {
	took, err := timeGet(browser, url)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures = append(l.failures, err.Error())
		return
	}
	l.times = append(l.times, milliseconds(took))
}

// waitForResponses waits until the given number of additional requests has been answered.
func (l *getLoad) waitForResponses(more int) {
	l.t.Helper()
	answered := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.times)
	}
	NewWithT(l.t).Eventually(answered).WithTimeout(patience).WithPolling(proxyPace).Should(BeNumerically(">=", answered()+more))
}

// stop stops sending, waits for all responses, and returns the failures and the times of the successful requests.
func (l *getLoad) stop() (failures []string, times []float64) {
	l.cancel()
	l.all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures, l.times
}
