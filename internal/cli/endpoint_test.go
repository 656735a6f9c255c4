// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// servedAt returns the Lease of a host whose manager serves logs and terminals at an address.
func servedAt(host, address string) client.Object {
	lease := renewedAgo(host, 0)
	lease.SetAnnotations(map[string]string{"berth.dev/endpoint": address})
	return lease
}

// TestCommands_UseTheManagerOfTheHost checks that each command chooses the manager that has the process of the object, of several hosts.
func TestCommands_UseTheManagerOfTheHost(t *testing.T) {
	for host, address := range map[string]string{"laptop": "https://192.0.2.1", "builder": "https://192.0.2.2"} {
		for _, command := range []string{"logs devserver/web", "logs devservers -l app=web", "logs instance/agent", "logs --screen instance/agent", "send instance/agent hello", "attach instance/agent", "top"} {
			t.Run(host+": "+command, func(t *testing.T) {
				g := NewWithT(t)
				agent := &v1alpha1.Instance{Spec: v1alpha1.InstanceSpec{ProcessSpec: v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"sh"}}}}}
				agent.Namespace, agent.Name, agent.UID = "default", "agent", "uid-agent"
				agent.Status.HostName = host
				f := newFixture(agent, web(onHost(host), func(server *v1alpha1.DevServer) {
					server.Labels = map[string]string{"app": "web", v1alpha1.LabelHost: "laptop"} // the host that should have the object, not the one that has it
				}), servedAt("laptop", "https://192.0.2.1"), servedAt("builder", "https://192.0.2.2"))
				g.Expect(f.run(t.Context(), strings.Fields(command)...)).NotTo(BeZero())
				g.Expect(f.err.String()).To(ContainSubstring(`the Lease of host "` + host + `" in namespace berth-system names "` + address + `"`))
			})
		}
	}
}

func TestLogs_NameTheHostsIfNoneHasTheObject(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(), servedAt("laptop", "https://192.0.2.1"), servedAt("builder", "https://192.0.2.2"))
	g.Expect(f.run(t.Context(), "logs", "devserver/web")).NotTo(BeZero())
	g.Expect(f.err.String()).To(ContainSubstring("which of the hosts builder, laptop has the process"))
}

func TestLogs_TrustsOnlyThisMachineOrAPinnedAddress(t *testing.T) {
	for name, test := range map[string]struct {
		args        []string
		environment map[string]string
		says        string
	}{
		"published address":                       {says: "berth does not send your token there"},
		"pinned by a flag":                        {args: []string{"--endpoint=ftp://pinned"}, says: `"ftp://pinned"`},
		"pinned by the environment":               {environment: map[string]string{endpointVariable: "ftp://pinned"}, says: `"ftp://pinned"`},
		"the flag wins":                           {args: []string{"--endpoint=ftp://flag"}, environment: map[string]string{endpointVariable: "x"}, says: `"ftp://flag"`},
		"unreadable CA file":                      {args: []string{"--endpoint-ca=/none"}, says: "certificate authority"},
		"another installation":                    {args: []string{"--manager-namespace=elsewhere"}, says: "no Lease in namespace elsewhere"},
		"another installation by the environment": {environment: map[string]string{managerNamespaceVariable: "elsewhere"}, says: "no Lease in namespace elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for variable, value := range test.environment {
				t.Setenv(variable, value)
			}
			f := newFixture(web(), servedAt("laptop", "https://192.0.2.1"))
			g.Expect(f.run(t.Context(), append([]string{"logs", "devserver/web"}, test.args...)...)).NotTo(BeZero())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
		})
	}
}
