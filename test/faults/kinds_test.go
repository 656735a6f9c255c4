// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults crashes a manager at every write and every act (a call that changes the runtime), gives it stale reads of its cache, and lets two
// leaders reconcile one object. In every case the final state must equal the final state of a run without faults, with the same number of process
// starts and at most one live process at any time.
package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/devserver"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/languageserver"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
)

// servedPort is the port of a test server that answers for every DevServer of these tests.
var servedPort int32

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	var port int
	if _, err := fmt.Sscanf(server.URL, "http://127.0.0.1:%d", &port); err != nil {
		fmt.Fprintln(os.Stderr, "find the port of the test server:", err)
		os.Exit(1)
	}
	servedPort = int32(port)
	code := m.Run()
	server.Close()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// dependencies contains what the adapter of a kind needs. The adapter is the implementation of process.Kind.
type dependencies struct {
	client   client.Client
	reader   client.Reader
	runtimes *runtime.Registry
	clock    clock.PassiveClock
	wake     func(types.UID)
}

// kindUnderTest is a kind of objects that these tests run.
type kindUnderTest struct {
	name string
	// object returns an object of the kind.
	object func() process.Object
	// newKind creates the adapter. The background work of the adapter stops when the context ends.
	newKind func(t *testing.T, ctx context.Context, d dependencies) process.Kind
	// asynchronous means that the kind receives information outside of reconciles, such as probe results, and then requests another reconcile.
	asynchronous bool
}

var kindsUnderTest = []kindUnderTest{
	{
		name:   "Instance",
		object: func() process.Object { return &v1alpha1.Instance{} },
		newKind: func(_ *testing.T, _ context.Context, d dependencies) process.Kind {
			return instance.New(d.client, d.runtimes, d.clock)
		},
	},
	{
		name: "DevServer",
		object: func() process.Object {
			return &v1alpha1.DevServer{Spec: v1alpha1.DevServerSpec{Port: ptr.To(servedPort)}}
		},
		newKind: func(t *testing.T, ctx context.Context, d dependencies) process.Kind {
			kind, err := devserver.New(d.client, d.reader, d.runtimes, d.clock, devserver.Options{}, d.wake)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = kind.Probes().Start(ctx)
			}()
			t.Cleanup(func() {
				cancel()
				<-ended
			})
			return kind
		},
		asynchronous: true,
	},
	{
		// The runtime of these tests has no multiplexer, so a server is ready as soon as it runs.
		name: "LanguageServer",
		object: func() process.Object {
			return &v1alpha1.LanguageServer{Spec: v1alpha1.LanguageServerSpec{
				Language: "go", Workspace: v1alpha1.Workspace{Folders: []string{"/src"}},
			}}
		},
		newKind: func(_ *testing.T, _ context.Context, d dependencies) process.Kind {
			return languageserver.New(d.client, d.reader, d.runtimes, d.clock)
		},
	},
}

// patience bounds work that takes milliseconds on an idle machine.
const patience = 2 * time.Minute
