// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/probe"
)

// The Service has the name of the DevServer if that is a valid Service name; otherwise a valid name is derived from it.
func TestServiceName_IsValid(t *testing.T) {
	g := NewWithT(t)
	for name, want := range map[string]string{
		"web": "^web$", "web.app": "^dev-web-app-[0-9a-f]{8}$", "1st": "^dev-1st-[0-9a-f]{8}$",
		"a-very-long-name-that-nobody-would-give-to-a-server-of-his-own-but-may": "^dev-a-very-long-name-.*-[0-9a-f]{8}$",
	} {
		dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		g.Expect(serviceName(dev)).To(MatchRegexp(want))
		g.Expect(validation.IsDNS1035Label(serviceName(dev))).To(BeEmpty())
	}
}

// Probes of a server in a Pod never reach anything on this machine.
func TestPodProbes_NeverReachThisMachine(t *testing.T) {
	g := NewWithT(t)
	k, m := &Kind{}, &objectCache{history: history{probePort: 80}}
	http := &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{}}
	_, known := k.config(&v1alpha1.DevServer{}, probe.Key{}, http, m, snapshot{remote: true})
	g.Expect(known).To(BeFalse(), "a Pod without an address is not probed on loopback")
	config, known := k.config(&v1alpha1.DevServer{}, probe.Key{}, http, m, snapshot{remote: true, address: "10.0.0.7"})
	g.Expect(known).To(BeTrue())
	g.Expect(config.Check.HTTP.URL).To(Equal("http://10.0.0.7:80/"))
	_, known = k.config(&v1alpha1.DevServer{}, probe.Key{}, &v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"true"}}}, m, snapshot{remote: true, address: "10.0.0.7"})
	g.Expect(known).To(BeFalse(), "no command runs beside the manager")
}
