// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestWait_ReturnsWhenTheStateIsReached(t *testing.T) {
	stopped := func(server *v1alpha1.DevServer) {
		server.Spec.State, server.Status.Process = v1alpha1.StateStopped, nil
	}
	unseen := func(server *v1alpha1.DevServer) { server.Generation = 2 }
	for name, test := range map[string]struct {
		change func(*v1alpha1.DevServer)
		args   []string
		code   int
	}{
		"ready":                          {nil, []string{"devserver/web"}, 0},
		"new generation":                 {unseen, []string{"devserver/web"}, 4},
		"not stopped":                    {nil, []string{"devserver/web", "--for", "stopped"}, 4},
		"stopped":                        {stopped, []string{"devserver", "web", "--for", "stopped"}, 0},
		"not deleted":                    {nil, []string{"devserver/web", "--for", "deleted"}, 4},
		"deleted":                        {nil, []string{"devserver/none", "--for", "deleted"}, 0},
		"missing":                        {nil, []string{"devserver/none"}, 3},
		"condition":                      {nil, []string{"devserver/web", "--for", "condition=PortVerified=false"}, 0},
		"omitted condition":              {nil, []string{"devserver/web", "--for", "condition=Healthy"}, 0},
		"omitted condition, wrong value": {nil, []string{"devserver/web", "--for", "condition=Healthy=False"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := web()
			if test.change != nil {
				test.change(server)
			}
			f := newFixture(server)
			patience := "1m" // the command returns immediately, but the machine may be busy
			if test.code == exitTimeout {
				patience = "1ms"
			}
			g.Expect(f.run(t.Context(), append([]string{"wait", "--timeout", patience}, test.args...)...)).To(Equal(test.code), f.err.String())
		})
	}
}

func TestWait_SurvivesErrorsOfTheAPIServer(t *testing.T) {
	for _, failure := range []error{syscall.ECONNREFUSED, apierrors.NewServiceUnavailable("restart"), apierrors.NewTooManyRequests("later", 1)} {
		g := NewWithT(t)
		f := newFixture(web())
		var reads atomic.Int32
		f.api = interceptor.NewClient(f.api, interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
				if reads.Add(1) < 3 {
					return failure
				}
				return api.Get(ctx, key, object, opts...)
			},
		})
		g.Expect(f.run(t.Context(), "wait", "devserver/web")).To(Equal(0), f.err.String())
		g.Expect(f.err.String()).To(ContainSubstring("; retrying"))
	}

	g := NewWithT(t)
	f := newFixture(web())
	f.api = interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("devservers").GroupResource(), "web", errors.New("no"))
		},
	})
	g.Expect(f.run(t.Context(), "wait", "devserver/web")).To(Equal(1))
}
