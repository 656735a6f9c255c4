// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestStatus_OutputFormats(t *testing.T) {
	labeled := func(server *v1alpha1.DevServer) {
		server.Name, server.UID, server.Labels = "docs", "uid-docs", map[string]string{"app": "shop"}
	}
	for _, test := range []struct {
		args []string
		out  string
	}{
		{[]string{"status", "devserver/web", "-o", "jsonpath={.status.url}"}, "http://127.0.0.1:5173/"},
		{[]string{"get", "devservers", "-o", "jsonpath={.items[*].metadata.name}"}, "docs web"},
		{[]string{"status", "-o", "name"}, "devserver.berth.dev/docs\ndevserver.berth.dev/web\n"},
		{[]string{"status", "-l", "app=shop", "-o", "name"}, "devserver.berth.dev/docs\n"},
		{[]string{"status", "devserver", "web", "docs", "-o", "name"}, "devserver.berth.dev/docs\ndevserver.berth.dev/web\n"},
	} {
		g := NewWithT(t)
		f := newFixture(web(), web(labeled))
		g.Expect(f.run(t.Context(), test.args...)).To(Equal(0), f.err.String())
		g.Expect(f.out.String()).To(Equal(test.out), "%v", test.args)
	}

	g := NewWithT(t)
	f := newFixture(web(labeled))
	g.Expect(f.run(t.Context(), "status", "devserver/docs", "-o", "yaml")).To(Equal(0), f.err.String())
	one := &v1alpha1.DevServer{}
	g.Expect(yaml.UnmarshalStrict([]byte(f.out.String()), one)).To(Succeed())
	g.Expect(one.Kind).To(Equal("DevServer"))
	g.Expect(one.Status.URL).To(Equal("http://127.0.0.1:5173/"))

	f = newFixture(web(), web(labeled))
	g.Expect(f.run(t.Context(), "status", "-o", "json")).To(Equal(0), f.err.String())
	var list struct {
		Kind  string
		Items []v1alpha1.DevServer
	}
	g.Expect(json.Unmarshal([]byte(f.out.String()), &list)).To(Succeed())
	g.Expect(list.Kind).To(Equal("List"))
	g.Expect(list.Items).To(HaveLen(2))
	g.Expect(list.Items[0].Kind).To(Equal("DevServer"))

	server := web()
	server.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "someone"}}
	for _, single := range []bool{true, false} {
		printer, err := (&outputFormat{text: "json"}).printer(nil)
		g.Expect(err).NotTo(HaveOccurred())
		var out bytes.Buffer
		g.Expect(printObjects(printer, &out, []client.Object{server.DeepCopy()}, single)).To(Succeed())
		g.Expect(out.String()).NotTo(ContainSubstring("managedFields"))
	}

	f = newFixture(web())
	g.Expect(f.run(t.Context(), "status", "-o", "wide")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(MatchRegexp(`AGE +RUNTIME +HOST\n.*Host`))
}

func TestStatus_RefusesInvalidFormatsAndSelectors(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		said string
	}{
		{[]string{"status", "-o", "xml"}, 2, `-o "xml" is not supported`},
		{[]string{"status", "-o", "jsonpath={"}, 2, "jsonpath={"},
		{[]string{"status", "-o", "json", "-w"}, 2, "-w shows a table"},
		{[]string{"status", "-l", "a in"}, 1, `label selector "a in"`},
		{[]string{"status", "devserver/web", "-l", "a=b"}, 1, "devserver/web selects one object"},
		{[]string{"stop", "devserver/web", "--all"}, 1, `"devserver/web" names one object`},
		{[]string{"stop", "devservers", "--all", "-l", "a=b"}, 1, "use either --all or -l"},
		{[]string{"wait", "devserver/web", "--for", "happy"}, 2, `--for "happy" is not supported`},
	} {
		g := NewWithT(t)
		f := newFixture(web())
		g.Expect(f.run(t.Context(), test.args...)).To(Equal(test.code), "%v %s", test.args, f.err)
		g.Expect(f.err.String()).To(ContainSubstring(test.said))
	}
}

func TestSelection_ChangesOnlyTheSelectedObjects(t *testing.T) {
	g := NewWithT(t)
	other := web(func(server *v1alpha1.DevServer) {
		server.Name, server.UID, server.Labels = "docs", "uid-docs", map[string]string{"app": "shop"}
	})
	elsewhere := web(func(server *v1alpha1.DevServer) { server.Namespace, server.UID = "other", "uid-other" })
	f := newFixture(web(), other, elsewhere)
	g.Expect(f.run(t.Context(), "stop", "devservers", "-l", "app=shop")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(Equal("devserver/docs stop requested\n"))
	f = newFixture(web(), other, elsewhere)
	g.Expect(f.run(t.Context(), "stop", "devservers", "instances", "--all")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(Equal("devserver/docs stop requested\ndevserver/web stop requested\n"))
	f = newFixture(web())
	g.Expect(f.run(t.Context(), "delete", "devservers", "-l", "app=none")).To(Equal(0), "as kubectl")
	g.Expect(f.err.String()).To(Equal("no objects in namespace default match\n"))
}

func TestEvents_AreThoseOfBerth(t *testing.T) {
	g := NewWithT(t)
	event := func(name, uid, apiVersion, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: "Warning", Reason: "Crashed", Message: message,
			InvolvedObject: corev1.ObjectReference{APIVersion: apiVersion, Kind: "DevServer", Namespace: "default", Name: "web", UID: "uid-" + "web"},
		}
	}
	own, pod, other := event("a", "uid-web", "berth.dev/v1alpha1", "exit\x1b[31m code 1"), event("b", "uid-web", "v1", "pulled"), event("c", "uid-docs", "berth.dev/v1alpha1", "of docs")
	other.InvolvedObject.UID = "uid-docs"
	f := newFixture(web(), own, pod, other)
	g.Expect(f.run(t.Context(), "events")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(And(ContainSubstring("exit code 1"), ContainSubstring("of docs"), Not(ContainSubstring("pulled"))))
	f = newFixture(web(), own, other)
	g.Expect(f.run(t.Context(), "events", "devserver/web")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).NotTo(ContainSubstring("of docs"))

	f = newFixture(web(), own, other)
	g.Expect(f.run(t.Context(), "describe", "devserver/web")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(And(
		MatchRegexp(`Ready +True, Running`), MatchRegexp(`Command +web`), MatchRegexp(`PortVerified +False +OtherPort`),
		ContainSubstring("exit code 1"), Not(ContainSubstring("of docs")), Not(ContainSubstring("Next:")),
	))
	f = newFixture(web(func(server *v1alpha1.DevServer) { server.Spec.State = v1alpha1.StateStopped }))
	g.Expect(f.run(t.Context(), "describe", "devserver", "web")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(ContainSubstring("Next: The object is stopped: run berth start devserver/web to run it."))
}

func TestEvents_WatchPrintsEachOccurrenceOnce(t *testing.T) {
	g := NewWithT(t)
	event := func(name, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Type: "Normal", Reason: "Starting", Message: message,
			EventTime: metav1.NowMicro(), InvolvedObject: corev1.ObjectReference{APIVersion: "berth.dev/v1alpha1", Kind: "DevServer", Namespace: "default", Name: "web"},
		}
	}
	f := newFixture(event("a", "Starting incarnation 1."))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- f.run(ctx, "events", "-w") }()
	g.Eventually(f.out.String, timeout).Should(ContainSubstring("Normal devserver/web Starting: Starting incarnation 1."))
	g.Expect(f.api.Create(ctx, event("b", "Starting incarnation 2."))).To(Succeed())
	g.Eventually(f.out.String, timeout).Should(ContainSubstring("Starting incarnation 2."))
	cancel()
	g.Eventually(ended, timeout).Should(Receive(Equal(exitSignal)))
	g.Expect(strings.Count(f.out.String(), "\n")).To(Equal(2), f.out.String())
}
