// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package clocks

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var (
	//go:embed steady.yaml
	steadyYAML string
	//go:embed later.yaml
	laterYAML string
	//go:embed last.yaml
	lastYAML string
	//go:embed timed.yaml
	timedYAML string
)

const namespace = "default"

// create creates the objects of a template. set is the end of their names.
func (m *machine) create(template, set string, timeout time.Duration) (created []*unstructured.Unstructured) {
	m.Helper()
	start := "echo $$$$ $$(date +%s.%N) >>" + m.dir + "/" // Berth replaces $$ by $
	text := strings.NewReplacer("SET", set, "TIMEOUT", fmt.Sprint(int(timeout/time.Second)), "DIR", m.dir, "PROGRAMS", m.program("other"), "START ", start).Replace(template)
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return created
		}
		m.Expect(err).NotTo(HaveOccurred())
		o.SetAPIVersion(v1alpha1.GroupVersion.String())
		o.SetNamespace(namespace)
		// A new API server refuses objects until its policies are ready.
		m.Eventually(func() error { return m.client.Create(m.Context(), o) }).WithTimeout(patience).Should(Succeed(), o.GetName())
		created = append(created, o)
	}
}

// get returns the object with a kind and a name, or nil if it does not exist.
func (m *machine) get(kind, name string) *unstructured.Unstructured {
	m.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	err := m.client.Get(m.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	m.Expect(err).NotTo(HaveOccurred())
	return o
}

// field returns a field of an object as text, or the empty text if it is not set.
func field(o *unstructured.Unstructured, path ...string) string {
	if o == nil {
		return ""
	}
	value, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if err != nil || !found {
		return ""
	}
	return fmt.Sprint(value)
}

// patch changes the spec of an object.
func (m *machine) patch(kind, name, spec string) {
	m.Helper()
	m.Expect(m.client.Patch(m.Context(), m.get(kind, name), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`)))).To(Succeed())
}

// delete deletes objects and waits until they do not exist.
func (m *machine) delete(objects []*unstructured.Unstructured) {
	m.Helper()
	for _, o := range slices.Backward(objects) {
		m.Expect(client.IgnoreNotFound(m.client.Delete(m.Context(), o))).To(Succeed())
	}
	for _, o := range objects {
		m.Eventually(func() *unstructured.Unstructured { return m.get(o.GetKind(), o.GetName()) }).WithTimeout(patience).Should(BeNil(), o.GetName())
	}
}

// launch is a start of a program, by the clock of the real machine.
type launch struct {
	pid int
	at  time.Time
}

// launches returns the starts that the program of an object has recorded.
func (m *machine) launches(name string) (found []launch) {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.Expect(err).NotTo(HaveOccurred())
	}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) != 2 || !bytes.HasSuffix(line, []byte("\n")) {
			continue // the program is writing the line
		}
		pid, err := strconv.Atoi(fields[0])
		m.Expect(err).NotTo(HaveOccurred())
		seconds, err := strconv.ParseFloat(fields[1], 64)
		m.Expect(err).NotTo(HaveOccurred())
		found = append(found, launch{pid, time.UnixMicro(int64(seconds * 1e6))})
	}
	return found
}

// lives reports whether a process that berth up has started runs. A PID may have been reused by another process.
func (m *machine) lives(pid int) bool {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // empty for a zombie
	return err == nil && bytes.Contains(environment, []byte(m.home()+"\x00"))
}

// stateOf returns what must not change by a step of the clock: the identity and the state of an object, and of its process.
func stateOf(o *unstructured.Unstructured) map[string]string {
	if o == nil {
		return map[string]string{"exists": "false"}
	}
	state := map[string]string{"uid": string(o.GetUID())}
	for _, path := range []string{
		"process pid", "process incarnation", "incarnation", "outcome", "phase", "state", "attempt", "breaker state", "breaker trialName", "stopping incarnation", "hostName",
	} {
		if value := field(o, append([]string{"status"}, strings.Fields(path)...)...); value != "" {
			state[path] = value
		}
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		condition := c.(map[string]any)
		state[fmt.Sprint(condition["type"])] = fmt.Sprint(condition["status"], " ", condition["reason"])
	}
	return state
}
