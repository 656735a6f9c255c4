// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/tolerant"
)

func TestStatus_WarnsAboutObjectsThatDoNotDecode(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	connect, omitted := f.app.connect, &omissions{}
	f.app.connect = func(flags *connectionFlags) (*connection, error) {
		to, err := connect(flags)
		to.omitted = omitted
		return to, err
	}
	for i := range 2 * maxOmissions {
		bad := &tolerant.Undecodable{Object: &metav1.PartialObjectMetadata{}, Err: errors.New("no quantity")}
		bad.Object.Kind, bad.Object.Namespace, bad.Object.Name = "DevServer", "default", fmt.Sprintf("bad-%d", i)
		omitted.add(bad)
	}
	g.Expect(f.run(t.Context(), "status")).To(BeZero())
	g.Expect(f.out.String()).To(ContainSubstring("web"))
	g.Expect(f.err.String()).To(ContainSubstring("warning: DevServer default/bad-0 cannot be decoded"))
	g.Expect(strings.Count(f.err.String(), "cannot be decoded")).To(Equal(maxOmissions))
	g.Expect(omitted.take()).To(BeEmpty(), "the next call does not repeat the warnings")
}
