// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// A failure that a user has to fix blocks the object with a message and is retried later; other failures are retried as errors.
func TestServices_BlockWhenClusterRefuses(t *testing.T) {
	g := NewWithT(t)
	object := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "u"}}
	services := corev1.Resource("services")
	serve := func(answer error) (reason string, err error) {
		refusing := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return answer },
		}).Build()
		blocked, err := Services{Client: refusing, Reader: refusing}.Serve(t.Context(), object, "DevServer", Service(object, "DevServer", "web", "dev", 8080))
		if blocked == nil {
			return "", err
		}
		g.Expect(blocked.Message).To(ContainSubstring(answer.Error()))
		g.Expect(blocked.Retry).To(BeNumerically(">", 0), "no event announces when the Service can be created")
		return blocked.Reason, err
	}
	for _, answer := range []error{
		apierrors.NewForbidden(services, "web", errors.New("exceeded quota: few, requested: services=1, used: services=5, limited: services=5")),
		apierrors.NewInternalError(errors.New("failed to allocate a serviceIP: range is full")),
	} {
		reason, err := serve(answer)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reason).To(Equal(v1alpha1.ReasonStartFailed))
	}
	theirs := Service(object, "DevServer", "web", "dev", 8081) // a policy may allow an existing Service but deny its change
	denied := apierrors.NewForbidden(services, "web", errors.New("denied request"))
	unchanging := fake.NewClientBuilder().WithObjects(theirs).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return denied
		},
	}).Build()
	blocked, err := Services{Client: unchanging, Reader: unchanging}.Serve(t.Context(), object, "DevServer", Service(object, "DevServer", "web", "dev", 8080))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonStartFailed)))
	for _, answer := range []error{apierrors.NewInternalError(errors.New("etcdserver: no leader")), apierrors.NewTooManyRequests("later", 1)} {
		_, err := serve(answer)
		g.Expect(err).To(MatchError(ContainSubstring(answer.Error())))
	}
}
