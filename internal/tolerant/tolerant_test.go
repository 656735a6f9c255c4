// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tolerant

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// instance returns an Instance in JSON, with the parameter fields after its metadata.
func instance(name, fields string) string {
	return fmt.Sprintf(`{"apiVersion":"berth.dev/v1alpha1","kind":"Instance","metadata":{"name":%q,"namespace":"a","uid":"u-%s","resourceVersion":"7"}%s}`, name, name, fields)
}

const limits = `,"spec":{"process":{"command":["a"]},"runtime":{"type":"Pod","pod":{"image":"a","resources":{"limits":{"memory":%q}}}}}`

// poisoned are instances that do not decode, by name.
var poisoned = map[string]string{
	"fraction": instance("fraction", fmt.Sprintf(limits, "1e1.5")),
	"huge":     instance("huge", fmt.Sprintf(limits, "1e2147483647")),
	"signed":   instance("signed", fmt.Sprintf(limits, "+.5E+00002147483647")),
	"tiny":     instance("tiny", fmt.Sprintf(limits, "-1.E-02147483647")),
	"time":     instance("time", `,"status":{"nextRestartTime":"2026-01-02T03:04:05Z"}`),
	"number":   instance("number", `,"spec":{"idleTimeoutSeconds":1e30}`),
	"type":     instance("type", `,"spec":[]`),
}

// healthy has values that only look like those of poisoned.
var healthy = instance("healthy", `,"spec":{"process":{"command":["1e2147483647","2026-01-02T03:04:05Z","2\u003e1234","e1234","0123456e4444"]}},"status":{"nextRestartTime":"2026-01-02T03:04:05.000006Z"}`)

// fixture is a client of a server that answers each request with the text.
type fixture struct {
	client.WithWatch
	mu      sync.Mutex
	omitted []string
}

func newFixture(t *testing.T, answer string) *fixture {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, v1alpha1.GroupVersion)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Instance", "InstanceList"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	f := &fixture{}
	config := Config(&rest.Config{Host: server.URL}, func(bad *Undecodable) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.omitted = append(f.omitted, bad.Object.Name)
	})
	var err error
	f.WithWatch, err = client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return f
}

func TestList_OmitsObjectsThatDoNotDecode(t *testing.T) {
	g := NewWithT(t)
	items, names := []string{healthy}, []string{}
	for name, text := range poisoned {
		items, names = append(items, text), append(names, name)
	}
	f := newFixture(t, `{"apiVersion":"berth.dev/v1alpha1","kind":"InstanceList","metadata":{"resourceVersion":"9","continue":"c"},"items":[`+strings.Join(items, ",")+`]}`)
	list := &v1alpha1.InstanceList{}
	g.Expect(f.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	g.Expect(list.Items[0].Spec.Process.Command).To(Equal([]string{"1e2147483647", "2026-01-02T03:04:05Z", "2>1234", "e1234", "0123456e4444"}))
	g.Expect([]string{list.ResourceVersion, list.Continue}).To(Equal([]string{"9", "c"}))
	g.Expect(f.omitted).To(ConsistOf(names))
}

func TestGet_ReturnsErrorThatNamesTheObject(t *testing.T) {
	for name, text := range poisoned {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := newFixture(t, text).Get(t.Context(), client.ObjectKey{Namespace: "a", Name: name}, &v1alpha1.Instance{})
			g.Expect(err).To(MatchError(HavePrefix("Instance a/" + name + " cannot be decoded")))
			g.Expect(IsUndecodable(err)).To(BeTrue())
			g.Expect(len(err.Error())).To(BeNumerically("<", 2*maxError))
		})
	}
	g := NewWithT(t)
	g.Expect(newFixture(t, healthy).Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "healthy"}, &v1alpha1.Instance{})).To(Succeed())
}

func TestGet_KeepsOtherErrorsAndMetadata(t *testing.T) {
	g := NewWithT(t)
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Instance"))
	f := newFixture(t, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"name":"fraction"}}`)
	g.Expect(f.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "fraction"}, metadata)).To(Succeed())
	g.Expect(metadata.Name).To(Equal("fraction"))
	g.Expect(IsUndecodable(apierrors.NewBadRequest("a"))).To(BeFalse())
}

func TestWatch_ReportsObjectsThatDoNotDecodeAsDeleted(t *testing.T) {
	g := NewWithT(t)
	event := func(kind watch.EventType, object string) string {
		return fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object)
	}
	later := strings.Replace(poisoned["fraction"], "1e1.5", "1e1", 1)
	f := newFixture(t, strings.Join([]string{
		event(watch.Added, healthy), event(watch.Added, poisoned["fraction"]), event(watch.Modified, poisoned["huge"]), event(watch.Deleted, poisoned["time"]),
		event(watch.Modified, later), event(watch.Bookmark, `{"apiVersion":"berth.dev/v1alpha1","kind":"Instance","metadata":{"resourceVersion":"8"}}`),
		event(watch.Error, `{"apiVersion":"v1","kind":"Status","code":410,"reason":"Expired"}`),
	}, "\n")+"\n")
	stream, err := f.Watch(t.Context(), &v1alpha1.InstanceList{})
	g.Expect(err).NotTo(HaveOccurred())
	defer stream.Stop()
	var got []string
	for range 7 {
		var next watch.Event
		g.Eventually(stream.ResultChan()).WithTimeout(10 * time.Second).Should(Receive(&next))
		text := string(next.Type)
		if object, ok := next.Object.(*v1alpha1.Instance); ok {
			text += " " + object.Namespace + "/" + object.Name + " " + string(object.UID) + " " + object.ResourceVersion
		}
		got = append(got, text)
	}
	g.Expect(got).To(Equal([]string{
		"ADDED a/healthy u-healthy 7", "DELETED a/fraction u-fraction 7", "DELETED a/huge u-huge 7", "DELETED a/time u-time 7", "MODIFIED a/fraction u-fraction 7",
		"BOOKMARK /  8", "ERROR",
	}))
	g.Expect(f.omitted).To(Equal([]string{"fraction", "huge"}), "a deletion is not reported")
}

func TestCheck_BoundsTheError(t *testing.T) {
	g := NewWithT(t)
	bad := check([]byte(instance("long", fmt.Sprintf(limits, strings.Repeat("\x1b[31m", 10000)))))
	g.Expect(bad).To(HaveOccurred())
	g.Expect(len(bad.Err.Error())).To(BeNumerically("<=", maxError+len("…")))
	g.Expect(bad.Err.Error()).NotTo(ContainSubstring("\x1b"))
}

func BenchmarkCheck(b *testing.B) {
	object := &v1alpha1.Instance{TypeMeta: metav1.TypeMeta{APIVersion: "berth.dev/v1alpha1", Kind: "Instance"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "a"}}
	object.Spec.Process.Command = []string{"a", strings.Repeat("b", 500)}
	for _, kind := range []string{"Ready", "Progressing", "Stalled", "Idle"} {
		meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{Type: kind, Status: "True", Reason: "Running", Message: strings.Repeat("text ", 20)})
	}
	text, err := json.Marshal(object)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if check(text) != nil {
			b.Fatal("does not decode")
		}
	}
}
