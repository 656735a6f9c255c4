// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestNew_LimitsRestartsByDefault(t *testing.T) {
	g := NewWithT(t)
	before := setups
	t.Cleanup(func() { setups = before })
	var passed process.Dependencies
	setups = []func(ctrl.Manager, process.Dependencies) error{func(_ ctrl.Manager, deps process.Dependencies) error {
		passed = deps
		return nil
	}}
	// The manager reads the API discovery documents before it starts.
	discovered := map[string]string{
		"/api":    `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "services", "namespaced": true, "kind": "Service"}]}`,
		"/apis":   `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
	}
	var kinds []string
	for kind := range Scheme().KnownTypes(v1alpha1.GroupVersion) {
		kinds = append(kinds, fmt.Sprintf(`{"name": "%ss", "namespaced": true, "kind": "%s"}`, strings.ToLower(kind), kind))
	}
	discovered["/apis/"+v1alpha1.GroupVersion.String()] = fmt.Sprintf(`{"kind": "APIResourceList", "groupVersion": "%s", "resources": [%s]}`,
		v1alpha1.GroupVersion, strings.Join(kinds, ","))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(discovered[r.URL.Path]))
	}))
	t.Cleanup(server.Close)
	_, err := New(&rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}, Options{
		Runtimes: runtime.NewRegistry(fake.New(t.Context(), clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))), logr.Discard()),
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(passed.Restarts).To(Equal(process.NewRestarts()))
}
