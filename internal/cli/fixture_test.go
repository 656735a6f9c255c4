// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

const timeout = time.Minute

// berthVariable turns this test binary into the program berth. Each line of the variable is one argument.
const berthVariable = "BERTH_TEST_ARGUMENTS"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(berthVariable); arguments != "" {
		os.Exit(Main(append([]string{"berth"}, strings.Split(arguments, "\n")...)))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// client-go leaves this goroutine behind after a detach; in production it ends with the program.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// output is a buffer that supports concurrent writes and reads.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}

// fixture is the berth command line with a fake API server in memory.
type fixture struct {
	app      *app
	api      client.WithWatch
	out, err *output
}

func newFixture(objects ...client.Object) *fixture {
	f := &fixture{out: &output{}, err: &output{}}
	f.api = fake.NewClientBuilder().WithScheme(manager.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.DevServer{}, &v1alpha1.Instance{}, &v1alpha1.LanguageServer{}, &v1alpha1.StrategyRun{}, &v1alpha1.Strategy{}).
		WithIndex(&corev1.Event{}, eventUID, func(event client.Object) []string { return []string{string(event.(*corev1.Event).InvolvedObject.UID)} }).Build()
	f.app = &app{
		in: strings.NewReader(""), out: f.out, err: f.err, clock: clock.RealClock{},
		connect: func(flags *connectionFlags) (*connection, error) {
			namespace := flags.namespace
			if namespace == "" {
				namespace = "default"
			}
			return &connection{config: &rest.Config{BearerToken: "token"}, client: f.api, namespace: namespace, endpoint: flags.endpoint}, nil
		},
	}
	return f
}

func (f *fixture) run(ctx context.Context, args ...string) int {
	return f.app.run(ctx, append([]string{"berth"}, args...))
}

// web returns a running DevServer.
func web(change ...func(*v1alpha1.DevServer)) *v1alpha1.DevServer {
	server := &v1alpha1.DevServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", CreationTimestamp: metav1.NewTime(time.Now().Add(-5 * time.Minute))},
		Spec:       v1alpha1.DevServerSpec{ProcessSpec: v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"web"}}}},
		Status: v1alpha1.DevServerStatus{URL: "http://127.0.0.1:5173/", ProcessStatus: v1alpha1.ProcessStatus{
			Incarnation: 3, RestartCount: 2, Process: &v1alpha1.ProcessReference{Incarnation: 3, PID: 4711},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRunning},
				{Type: v1alpha1.ConditionPortVerified, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonOtherPort, Message: "The server listens on 5174 instead of 5173."},
			},
		}},
	}
	for _, do := range change {
		do(server)
	}
	return server
}

// shell returns an Instance in another namespace that is not running.
func shell() *v1alpha1.Instance {
	return &v1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "shell", UID: "uid-shell"},
		Spec:       v1alpha1.InstanceSpec{ProcessSpec: v1alpha1.ProcessSpec{Process: v1alpha1.ProcessTemplate{Command: []string{"sh"}}}},
		Status: v1alpha1.InstanceStatus{AttachCommand: "berth attach instance/shell -n other", ProcessStatus: v1alpha1.ProcessStatus{
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCommandNotFound, Message: "sh\x1b[31m was\nnot found",
			}},
		}},
	}
}

func readWeb(g Gomega, f *fixture) *v1alpha1.DevServer {
	server := &v1alpha1.DevServer{}
	g.Expect(f.api.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "web"}, server)).To(Succeed())
	return server
}
