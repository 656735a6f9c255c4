// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// object is an object that runs a process.
type object interface {
	client.Object
	GetProcessSpec() *v1alpha1.ProcessSpec
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// testObject is an object under test and the mark of its processes.
type testObject struct {
	object
	resource string // name on the command line, such as devserver
	mark     string
}

var serial atomic.Int64

// newTestObject sets a unique name and mark.
func newTestObject(o object, resource, name string) *testObject {
	unique := fmt.Sprintf("%s-%d", name, serial.Add(1))
	o.SetName(unique)
	o.SetNamespace(namespace)
	s := &testObject{object: o, resource: resource, mark: suiteBerth.mark + "-" + unique}
	template := &o.GetProcessSpec().Process
	template.Env = append(template.Env, v1alpha1.EnvVar{Name: objectMark, Value: s.mark})
	return s
}

func devServer(name, dir string, command ...string) *testObject {
	return newTestObject(&v1alpha1.DevServer{Spec: v1alpha1.DevServerSpec{ProcessSpec: processSpec(dir, command)}}, "devserver", name)
}

func instance(name string, command ...string) *testObject {
	return newTestObject(&v1alpha1.Instance{Spec: v1alpha1.InstanceSpec{ProcessSpec: processSpec("", command)}}, "instance", name)
}

// processSpec returns the spec of a process. It skips the spec of the suite if the program is one that tests need and that is not installed.
func processSpec(dir string, command []string) v1alpha1.ProcessSpec {
	GinkgoHelper()
	if len(command) > 0 && need.Listed(command[0]) {
		need.Programs(GinkgoT(), command[0])
	}
	return v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{
		Command: command, WorkingDir: dir,
		Stop: v1alpha1.StopPolicy{GracePeriodSeconds: ptr.To[int32](5)},
	}}
}

func (s *testObject) path() string                        { return s.resource + "/" + s.GetName() }
func (s *testObject) server() *v1alpha1.DevServer         { return s.object.(*v1alpha1.DevServer) }
func (s *testObject) status() *v1alpha1.ProcessStatus     { return s.GetProcessStatus() }
func (s *testObject) condition(t string) metav1.Condition { return conditionOf(s.object, t) }

func conditionOf(o object, conditionType string) metav1.Condition {
	if found := meta.FindStatusCondition(o.GetProcessStatus().Conditions, conditionType); found != nil {
		return *found
	}
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionUnknown}
}

// create creates the object. At the end of the spec a cleanup deletes the object and checks that none of its processes remains.
func (s *testObject) create(ctx context.Context) *testObject {
	GinkgoHelper()
	Expect(suiteBerth.client.Create(ctx, s.object)).To(Succeed())
	DeferCleanup(s.delete)
	return s
}

func (s *testObject) delete(ctx context.Context) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(suiteBerth.client.Delete(ctx, s.object))).To(Succeed())
	s.waitUntilGone(ctx)
}

// waitUntilGone waits until the object no longer exists, and checks that none of its processes runs any more.
func (s *testObject) waitUntilGone(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() bool { return apierrors.IsNotFound(s.read(ctx)) }).Should(BeTrue(), "%s still exists", s.path())
	Expect(processTree(s.mark)).To(BeEmpty(), "processes of %s remain", s.path())
}

// read reads the object into a new value, so that removed fields do not keep their old values.
func (s *testObject) read(ctx context.Context) error {
	fresh := s.newEmpty()
	if err := suiteBerth.client.Get(ctx, client.ObjectKeyFromObject(s.object), fresh); err != nil {
		return err
	}
	s.object = fresh
	return nil
}

func (s *testObject) newEmpty() object {
	switch s.resource {
	case "instance":
		return &v1alpha1.Instance{}
	case "languageserver":
		return &v1alpha1.LanguageServer{}
	}
	return &v1alpha1.DevServer{}
}

// patch patches the spec.
func (s *testObject) patch(ctx context.Context, mutate func()) {
	GinkgoHelper()
	before := s.DeepCopyObject().(client.Object)
	mutate()
	Expect(suiteBerth.client.Patch(ctx, s.object, client.MergeFrom(before))).To(Succeed())
}

// waitUntilReady waits until the object is Ready for the current generation.
func (s *testObject) waitUntilReady(ctx context.Context) *testObject {
	GinkgoHelper()
	s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	return s
}

// waitForCondition waits until the condition is True with this reason for the current generation.
func (s *testObject) waitForCondition(ctx context.Context, conditionType, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.read(ctx)).To(Succeed())
		condition := s.condition(conditionType)
		g.Expect(condition.ObservedGeneration).To(Equal(s.GetGeneration()))
		g.Expect(string(condition.Status)+" "+condition.Reason).To(Equal("True "+reason), "conditions: %+v", s.status().Conditions)
	}).WithTimeout(startTimeout).Should(Succeed())
}

// waitForIncarnation waits until incarnation n is the current one and the object is Ready.
func (s *testObject) waitForIncarnation(ctx context.Context, n int64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.read(ctx)).To(Succeed())
		g.Expect(s.status().Incarnation).To(Equal(n))
		g.Expect(s.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue))
	}).WithTimeout(startTimeout).Should(Succeed())
}

// waitForResponse waits until the response at the server's URL contains the words.
func (s *testObject) waitForResponse(words string) {
	GinkgoHelper()
	url := s.server().Status.URL
	Expect(url).NotTo(BeEmpty())
	Eventually(func() (string, error) { return fetch(url) }).WithTimeout(startTimeout).Should(ContainSubstring(words), url)
}

var httpClient = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func fetch(url string) (string, error) {
	response, err := httpClient.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return string(body), err
}

// statusObserver observes an object until results is called: by polling, as a client would, and by a watch, which sees every change.
type statusObserver struct {
	mu       sync.Mutex
	missing  int
	notReady int
	seen     map[string]bool // condition types that were True
	stop     func()
}

// observe starts observing the object.
func (s *testObject) observe(ctx context.Context) *statusObserver {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	w := &statusObserver{seen: map[string]bool{}}
	list := client.ObjectList(&v1alpha1.DevServerList{})
	switch s.resource {
	case "instance":
		list = &v1alpha1.InstanceList{}
	case "languageserver":
		list = &v1alpha1.LanguageServerList{}
	}
	revisions, err := suiteBerth.client.Watch(ctx, list, inNamespace,
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", s.GetName())})
	Expect(err).NotTo(HaveOccurred())
	var done sync.WaitGroup
	done.Go(func() { w.follow(revisions) })
	reader, key := suiteBerth.client, client.ObjectKeyFromObject(s.object)
	done.Go(func() {
		w.poll(ctx, func() (object, error) {
			o := s.newEmpty()
			return o, reader.Get(ctx, key, o)
		})
	})
	w.stop = sync.OnceFunc(func() {
		cancel()
		revisions.Stop()
		done.Wait()
	})
	DeferCleanup(w.stop)
	return w
}

func (w *statusObserver) follow(revisions watch.Interface) {
	for event := range revisions.ResultChan() {
		o, ok := event.Object.(object)
		if !ok {
			continue
		}
		w.mu.Lock()
		if event.Type == watch.Deleted {
			w.missing++
		}
		for _, condition := range o.GetProcessStatus().Conditions {
			if condition.Status == metav1.ConditionTrue {
				w.seen[condition.Type] = true
			}
		}
		w.mu.Unlock()
	}
}

// poll counts the reads in which the object is missing or not Ready. It ignores other errors, because the API server is unreachable after berth was killed.
func (w *statusObserver) poll(ctx context.Context, read func() (object, error)) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		o, err := read()
		w.mu.Lock()
		switch {
		case apierrors.IsNotFound(err):
			w.missing++
		case err == nil && conditionOf(o, v1alpha1.ConditionReady).Status != metav1.ConditionTrue:
			w.notReady++
		}
		w.mu.Unlock()
	}
}

// results stops observing and returns the results.
func (w *statusObserver) results() (missing, notReady int, seen map[string]bool) {
	w.stop()
	return w.missing, w.notReady, w.seen
}
