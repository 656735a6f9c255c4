// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/endpoint"
)

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
		"another installation":                    {args: []string{"--manager-namespace=elsewhere"}, says: "ConfigMap elsewhere/berth-endpoint"},
		"another installation by the environment": {environment: map[string]string{managerNamespaceVariable: "elsewhere"}, says: "ConfigMap elsewhere/berth-endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for variable, value := range test.environment {
				t.Setenv(variable, value)
			}
			f := newFixture(web(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: endpoint.Namespace, Name: endpoint.ConfigMap}, Data: map[string]string{"url": "https://192.0.2.1"},
			})
			g.Expect(f.run(t.Context(), append([]string{"logs", "devserver/web"}, test.args...)...)).NotTo(BeZero())
			g.Expect(f.err.String()).To(ContainSubstring(test.says))
		})
	}
}
