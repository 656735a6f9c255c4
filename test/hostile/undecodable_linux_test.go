// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
)

const (
	// maxRestart bounds a restart of the well-behaved object while objects that do not decode are created.
	maxRestart = 3 * time.Second
	// maxTakeover bounds the time from the start of a manager until it has restarted the well-behaved object.
	maxTakeover = 5 * time.Second
	// serveTime bounds the wait until the manager has served a new object, and often is the interval between two checks. keptTime is several times the shortest interval
	// between two searches for processes without an object.
	serveTime, often, keptTime = 30 * time.Second, 50 * time.Millisecond, 2 * time.Second

	limited   = `{process: {command: [sleep, infinity]}, runtime: {type: Pod, pod: {image: a, resources: {limits: {memory: %q}}}}}`
	lateStart = `{status: {nextRestartTime: "2026-01-02T03:04:05Z"}}`
)

// undecodable are objects that do not decode, unless the schema has the patterns of docs/decisions/0071.
var undecodable = []struct{ kind, spec, status string }{
	{"Instance", fmt.Sprintf(limited, "1e1.5"), ""},
	{"Instance", fmt.Sprintf(limited, "1e2147483647"), ""},
	{"Instance", `{process: {command: [sleep, infinity]}, state: Stopped}`, lateStart},
	{"DevServer", fmt.Sprintf(limited, "1e1.5"), ""},
	{"LanguageServer", `{language: go, process: {command: [sleep, infinity]}, workspace: {folders: [/tmp]}, limits: {maxMemory: "1e-2147483647"}}`, ""},
	{"Strategy", fmt.Sprintf(limited, "1e99999"), ""},
	{"StrategyRun", kinds["StrategyRun"], lateStart},
	{"Plan", kinds["Plan"], `{status: {phaseStartTime: "2026-01-02T03:04:05.1Z"}}`},
	{"InstanceDiscovery", kinds["InstanceDiscovery"], `{status: {lastDiscoveryTime: "2026-01-02t03:04:05.123456z"}}`},
}

// TestUndecodableObjects_DoNotAffectOtherObjects creates objects that do not decode in one namespace, half of them under a running manager. The schemas have no
// patterns for times and quantities, so that the API server accepts these objects. All other objects must be served on time, also by the next manager.
func TestUndecodableObjects_DoNotAffectOtherObjects(t *testing.T) {
	w := newPlane(t)
	w.removePatterns()
	w.makeDir()
	w.startManager()
	wellBehaved := w.newBystander()
	count := envInt(t, "UNDECODABLE", 1000)

	ctx, cancel := context.WithCancel(t.Context())
	created := make(chan struct{})
	go func() { defer close(created); defer cancel(); w.createUndecodable(0, count/2) }()
	restarts, _ := wellBehaved.measureUntil(ctx)
	<-created
	for _, took := range restarts {
		if took > maxRestart {
			t.Errorf("a restart of the well-behaved object took %v while objects that do not decode were created", took)
		}
	}
	w.stopManager()
	w.createUndecodable(count/2, count)
	begun := time.Now()
	w.runManager()
	_, err := wellBehaved.restart(t.Context())
	w.must(err, "restart the well-behaved object")
	if took := time.Since(begun); took > maxTakeover {
		t.Errorf("the next manager served the well-behaved object %v after its start, more than %v", took, maxTakeover)
	} else {
		t.Logf("%d restarts, p50 %v, p99 %v; the next manager served after %v", len(restarts), percentile(restarts, 0.5), percentile(restarts, 0.99), took.Round(time.Millisecond))
	}
	w.expectKindsServed()
	w.expectReported(count)
	w.expectRepaired()
	w.expectProcessKept()
}

// removePatterns removes the patterns and rules for times and quantities from the installed schemas, and waits until the API server uses them.
func (w *world) removePatterns() {
	w.Helper()
	scheme := runtime.NewScheme()
	w.must(apiextensionsv1.AddToScheme(scheme), "create a scheme")
	api, err := client.New(w.config, client.Options{Scheme: scheme})
	w.must(err, "create a client")
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	w.must(api.List(w.Context(), definitions), "list the definitions")
	for i := range definitions.Items {
		loosen(definitions.Items[i].Spec.Versions[0].Schema.OpenAPIV3Schema)
		w.must(api.Update(w.Context(), &definitions.Items[i]), "change a definition")
	}
	for number := range undecodable {
		NewWithT(w).Eventually(w.tryUndecodable).WithArguments(number).WithTimeout(time.Minute).WithPolling(often).Should(Succeed(), "the schemas still have patterns")
	}
}

func loosen(s *schema) {
	if s.Format == "date-time" || s.XIntOrString {
		s.Pattern, s.XValidations = "", nil
	}
	for name, field := range s.Properties {
		loosen(&field)
		s.Properties[name] = field
	}
	if s.Items != nil {
		loosen(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		loosen(s.AdditionalProperties.Schema)
	}
}

// createUndecodable creates the objects with numbers from first, up to but not including end.
func (w *world) createUndecodable(first, end int) {
	var clients sync.WaitGroup
	for worker := range 4 {
		clients.Go(func() {
			for number := first + worker; number < end; number += 4 {
				if err := w.tryUndecodable(number + len(undecodable)); err != nil {
					w.Errorf("create an object that does not decode: %v", err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// tryUndecodable creates an object, and patches its status if the status is what does not decode.
func (w *world) tryUndecodable(number int) error {
	bad := undecodable[number%len(undecodable)]
	o := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("spec: "+bad.spec), &o.Object); err != nil {
		return err
	}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(bad.kind))
	o.SetNamespace(hostileNamespace)
	o.SetName(fmt.Sprintf("undecodable-%d", number))
	if err := client.IgnoreAlreadyExists(w.api.Create(w.Context(), o)); err != nil || bad.status == "" {
		return err
	}
	patch, err := yaml.YAMLToJSON([]byte(bad.status))
	if err != nil {
		return err
	}
	return w.api.Status().Patch(w.Context(), o, client.RawPatch(types.MergePatchType, patch))
}

// expectKindsServed creates an object of each kind that is a process, and waits until its process has been started.
func (w *world) expectKindsServed() {
	w.Helper()
	process := v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"sleep", "infinity"}}}
	meta := metav1.ObjectMeta{Namespace: bystanderNamespace, Name: "new"}
	server := &v1alpha1.DevServer{ObjectMeta: meta, Spec: v1alpha1.DevServerSpec{ProcessSpec: process}}
	instance := &v1alpha1.Instance{ObjectMeta: meta, Spec: v1alpha1.InstanceSpec{ProcessSpec: process}}
	strategy := &v1alpha1.Strategy{ObjectMeta: meta}
	strategy.Spec.Process.Command = []string{"true"}
	run := &v1alpha1.StrategyRun{ObjectMeta: meta, Spec: v1alpha1.StrategyRunSpec{StrategyRef: v1alpha1.LocalReference{Name: "new"}}}
	for _, object := range []client.Object{server, instance, strategy, run} {
		w.must(w.api.Create(w.Context(), object), "create an object")
	}
	NewWithT(w).Eventually(func(g Gomega) {
		for _, object := range []client.Object{server, instance, run} {
			g.Expect(w.get(object)).To(Succeed())
		}
		g.Expect(server.Status.Process).NotTo(BeNil(), "DevServer %+v", server.Status)
		g.Expect(instance.Status.Process).NotTo(BeNil(), "Instance %+v", instance.Status)
		g.Expect(run.Status.FinishTime).NotTo(BeNil(), "StrategyRun %+v", run.Status)
	}).WithTimeout(serveTime).WithPolling(often).Should(Succeed())
	w.end(run, strategy, server, instance)
}

// end deletes objects and waits until they are gone.
func (w *world) end(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		w.must(w.api.Delete(w.Context(), object), "delete an object")
	}
	for _, object := range objects {
		NewWithT(w).Eventually(w.get).WithArguments(object).WithTimeout(maxDeletionTime).WithPolling(often).Should(MatchError(apierrors.IsNotFound, "IsNotFound"), object.GetName())
	}
}

// expectReported expects that a metric, events and berth status report the objects that do not decode.
func (w *world) expectReported(count int) {
	w.Helper()
	if counted := w.ignored(); counted < count {
		w.Errorf("the metric counts %d objects that do not decode, not %d", counted, count)
	}
	status := exec.CommandContext(w.Context(), filepath.Join(w.dir, "berth"), "status", "instances", "-A", "--kubeconfig", filepath.Join(w.dir, "kubeconfig"))
	out, err := status.CombinedOutput()
	w.must(err, "run berth status")
	for _, expected := range []string{"warning: Instance hostile/undecodable-", "bystander"} {
		if !strings.Contains(string(out), expected) {
			w.Errorf("berth status does not print %q:\n%.2000s", expected, out)
		}
	}
	events := &unstructured.UnstructuredList{}
	events.SetAPIVersion("events.k8s.io/v1")
	events.SetKind("EventList")
	NewWithT(w).Eventually(func(g Gomega) {
		g.Expect(w.api.List(w.Context(), events, client.InNamespace(hostileNamespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(HaveField("Object", HaveKeyWithValue("reason", "Undecodable"))))
	}).WithTimeout(serveTime).WithPolling(often).Should(Succeed())
}

// ignored returns how many versions of objects the manager has ignored because they do not decode.
func (w *world) ignored() (total int) {
	w.Helper()
	text, err := w.scrape(w.Context())
	w.must(err, "read the metrics")
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "} "); strings.HasPrefix(name, "berth_undecodable_objects_total") {
			number, err := strconv.ParseFloat(value, 64)
			w.must(err, "read the metrics")
			total += int(number)
		}
	}
	return total
}

// expectRepaired corrects an object that does not decode, and waits until its process has been started.
func (w *world) expectRepaired() {
	w.Helper()
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: hostileNamespace, Name: "undecodable-2"}}
	correct := client.RawPatch(types.MergePatchType, []byte(`{"status":{"nextRestartTime":null}}`))
	w.must(w.api.Status().Patch(w.Context(), instance, correct), "correct an object")
	w.must(w.api.Patch(w.Context(), instance, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"Running"}}`))), "start the corrected object")
	w.waitUntilReady(instance)
	w.end(instance)
}

// expectProcessKept makes an object undecodable while its process runs. The manager, whose cache no longer contains the object, must not treat that process as
// one whose object was deleted, and must continue with it once the object is correct again.
func (w *world) expectProcessKept() {
	w.Helper()
	g := NewWithT(w)
	instance := w.instance("kept", "sleep", "infinity")
	w.must(w.api.Create(w.Context(), instance), "create an object")
	before := w.waitUntilReady(instance)
	running, err := procstat.Identify(int(instance.Status.Process.PID))
	w.must(err, "identify the process")
	w.Cleanup(func() { _ = procstat.Signal(running, unix.SIGKILL) }) // if the test fails, nothing else ends it
	ignored := w.ignored()
	raw := &unstructured.Unstructured{} // the response of the first patch does not decode
	raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Instance"))
	raw.SetNamespace(instance.Namespace)
	raw.SetName(instance.Name)
	status := func(nextRestartTime string) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"nextRestartTime":`+nextRestartTime+`}}`))
		w.must(w.api.Status().Patch(w.Context(), raw, patch), "patch a status")
	}
	status(`"2026-01-02T03:04:05Z"`)
	g.Eventually(w.ignored).WithTimeout(serveTime).WithPolling(often).Should(BeNumerically(">", ignored))
	g.Consistently(procstat.Alive).WithArguments(running).WithTimeout(keptTime).WithPolling(often).Should(BeTrue(), "the process of an object that does not decode")
	status("null")
	g.Expect(w.waitUntilReady(instance)).To(Equal(before))
	w.end(instance)
}
