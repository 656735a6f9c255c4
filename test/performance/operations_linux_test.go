// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	operations = 300
	clients    = 20
	// maxPause is the upper bound of the random pause of a client before an operation.
	maxPause = 200 * time.Millisecond
)

// TestOperations_RateOfTwentyClients lets 20 clients start, stop and restart objects at random, and compares their rate of operations with the rate when no
// manager runs. After the operations it expects exactly one process for each object whose spec.state is Running.
func TestOperations_RateOfTwentyClients(t *testing.T) {
	var few, many, bare, contended, ratios []float64
	for range rounds {
		bareRate := operationRate(t, nil, 100)
		fewRate, manyRate := operationRate(t, ptr.To(stateDirectory(t)), 5), operationRate(t, ptr.To(stateDirectory(t)), 100)
		bare, few, many = append(bare, bareRate), append(few, fewRate), append(many, manyRate)
		ratios, contended = append(ratios, bareRate/manyRate), append(contended, manyRate/fewRate)
	}
	addFigure("300 operations of 20 clients: on the bare API", "%.0f/s", median(bare))
	addFigure("300 operations of 20 clients: on 5 objects", "%.0f/s", median(few))
	addFigure("300 operations of 20 clients: on 100 objects", "%.0f/s", median(many))
	expectAtMost(t, "300 operations: bare API / 100 objects", median(ratios), 2, 2.5, "×")
	expectAtMost(t, "300 operations: 100 objects / 5 objects", median(contended), 1.1, 2.5, "×")
}

// operationRate runs the operations and returns their rate per second. If state is nil, no manager runs.
func operationRate(t *testing.T, state *string, objects int) float64 {
	t.Helper()
	g := NewWithT(t)
	var c *managerProcess
	if state != nil {
		c = startManager(t, *state, 0)
		defer c.stop()
	}
	namespace := newNamespace(t)
	name := func(i int) string { return fmt.Sprintf("%s-%03d", namespace, i) }
	inParallel(t, objects, clients, func(i int) error {
		instance := newInstance(namespace, name(i), workloadPath, "idle", name(i))
		instance.Spec.State = v1alpha1.StateStopped
		return k8s.Create(t.Context(), instance)
	})
	var token atomic.Int64
	began := time.Now()
	inParallel(t, operations, clients, func(int) error {
		pollOnce(rand.N(maxPause)) //nolint:gosec // the randomness need not be secure
		return change(t, namespace, name(rand.IntN(objects)), token.Add(1))
	})
	rate := operations / time.Since(began).Seconds()
	if state != nil {
		g.Eventually(func(g Gomega) { expectSpecifiedState(t, g, namespace) }).WithTimeout(patience).WithPolling(250 * time.Millisecond).Should(Succeed())
	} else {
		removeFinalizers(t, namespace)
	}
	deleteObjects(t, namespace)
	g.Expect(processesOf(namespace)).To(BeEmpty(), "a process outlived its object")
	return rate
}

// change starts, stops or restarts an object at random.
func change(t *testing.T, namespace, name string, token int64) error {
	patch := []string{
		`{"spec":{"state":"Running"}}`,
		`{"spec":{"state":"Stopped"}}`,
		fmt.Sprintf(`{"spec":{"state":"Running","restartToken":"%d"}}`, token),
	}[rand.IntN(3)]
	instance := &v1alpha1.Instance{}
	instance.Namespace, instance.Name = namespace, name
	return k8s.Patch(t.Context(), instance, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// expectSpecifiedState expects all objects to be at rest, with exactly one process for each object whose spec.state is Running.
func expectSpecifiedState(t *testing.T, g Gomega, namespace string) {
	var list v1alpha1.InstanceList
	g.Expect(k8s.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
	want := []string{}
	for i := range list.Items {
		instance := &list.Items[i]
		g.Expect(instance.Status.ObservedGeneration).To(Equal(instance.Generation))
		g.Expect(instance.Status.ObservedRestartToken == instance.Spec.RestartToken || instance.Spec.State == v1alpha1.StateStopped).To(BeTrue())
		if instance.Spec.State == v1alpha1.StateRunning {
			g.Expect(isReady(instance)).To(BeTrue())
			want = append(want, instance.Name)
		}
	}
	g.Expect(processesOf(namespace)).To(ConsistOf(want))
}

// processesOf returns the object names of all running processes of a namespace, read from their command lines.
func processesOf(namespace string) (names []string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		words := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		if len(words) == 3 && words[0] == workloadPath && words[1] == "idle" && strings.HasPrefix(words[2], namespace+"-") {
			names = append(names, words[2])
		}
	}
	return names
}
