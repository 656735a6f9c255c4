// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/endpoint"
)

// renewedAgo returns the Lease of a host, renewed the given time ago.
func renewedAgo(host string, ago time.Duration) client.Object {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: endpoint.Namespace, Name: "berth-host-" + host, Labels: map[string]string{v1alpha1.LabelHost: host}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-ago)))},
	}
}

func onHost(host string) func(*v1alpha1.DevServer) {
	return func(server *v1alpha1.DevServer) { server.Status.HostName = host }
}

func TestCommands_WarnAboutSilentManager(t *testing.T) {
	const silence = 45*time.Minute + 30*time.Second // also 45m on a slow machine
	const silent = "warning: the manager of host laptop has been silent for 45m"
	for name, test := range map[string]struct {
		args    string
		objects []client.Object
		warns   string
	}{
		"status":                {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"status of one":         {"status devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"restart":               {"restart devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"stop":                  {"stop devserver/web", []client.Object{web(onHost("laptop")), renewedAgo("laptop", silence)}, silent},
		"renewed":               {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", 12*time.Second)}, ""},
		"another host":          {"status", []client.Object{web(onHost("laptop")), renewedAgo("laptop", 0), renewedAgo("other", time.Hour)}, ""},
		"a host without Lease":  {"status", []client.Object{web(onHost("laptop")), renewedAgo("other", time.Hour)}, ""},
		"no host, one reports":  {"status", []client.Object{web(), renewedAgo("laptop", time.Hour), renewedAgo("other", 0)}, ""},
		"no host, none reports": {"status", []client.Object{web(), renewedAgo("laptop", time.Hour), renewedAgo("other", silence)}, "warning: every manager has been silent for 45m"},
		"no Lease at all":       {"status", []client.Object{web()}, ""},
		"no objects":            {"status", []client.Object{renewedAgo("laptop", time.Hour)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(test.objects...)
			g.Expect(f.run(t.Context(), strings.Fields(test.args)...)).To(BeZero(), f.err.String())
			if test.warns == "" {
				g.Expect(f.err.String()).NotTo(ContainSubstring("warning"))
				return
			}
			g.Expect(f.err.String()).To(ContainSubstring(test.warns))
			g.Expect(strings.Count(f.err.String(), "warning")).To(Equal(1))
		})
	}
}
