// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// podsOnHost fakes Pods for multiplexers with processes of this machine. Each multiplexer listens on its own loopback address.
type podsOnHost struct {
	*host.Host
	dir    string
	client *fake.Clientset

	mu            sync.Mutex
	made          map[string]*corev1.Pod
	address       map[types.UID]string
	waiting       map[types.UID]string // why the Pod of a UID is not running yet
	settled       []int64
	namespaces    map[types.UID]string
	loseResponses bool // starts succeed, but their responses are lost
}

// addresses counts the assigned loopback addresses. They depend on the PID of the tests, so that two runs of the tests at the same time do not use the same ones.
var addresses struct {
	sync.Mutex
	last int
}

// testNamespace is the namespace of the objects.
const testNamespace = "team"

func podKey(uid types.UID, number int64) string { return fmt.Sprintf("%s-%d", uid, number) }

func (p *podsOnHost) Start(ctx context.Context, process runtime.Process) error {
	var config pod.Config
	if err := json.Unmarshal(process.Config, &config); err != nil {
		return err
	}
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: config.Namespace, Name: podKey(process.UID, process.Incarnation), Annotations: config.Annotations,
			Labels: map[string]string{pod.LabelUID: string(process.UID)}, OwnerReferences: []metav1.OwnerReference{*config.Owner}},
		Spec: corev1.PodSpec{Volumes: config.Volumes, InitContainers: config.Init},
	}
	secret, err := p.client.CoreV1().Secrets(config.Namespace).Get(ctx, secretOfPod(made).name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	home := filepath.Join(p.dir, made.Name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	for name, content := range secret.Data {
		if err := os.WriteFile(filepath.Join(home, name), content, 0o600); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.made[made.Name] = made
	address := p.addressOf(process.UID)
	p.mu.Unlock()
	process.Command = []string{filepath.Join(programs, "berth-lsp-pod"), "--listen", net.JoinHostPort(address, strconv.Itoa(transport.Port)), "--keys", home, "--state", filepath.Join(home, "state")}
	process.Config, process.Dir = nil, "/"
	err = p.Host.Start(ctx, process)
	if err == nil && p.loseResponses {
		err = errors.New("the answer was lost")
	}
	return err
}

// addressOf returns the loopback address of the multiplexer of a UID, and assigns one if necessary. The caller holds the lock.
func (p *podsOnHost) addressOf(uid types.UID) string {
	if p.address[uid] == "" {
		addresses.Lock()
		addresses.last++
		p.address[uid] = fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%254, addresses.last/250, addresses.last%250+1)
		addresses.Unlock()
	}
	return p.address[uid]
}

func (p *podsOnHost) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	found, err := p.Host.Observe(ctx, uid)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range found {
		found[i].Namespace, found[i].PodName, found[i].Address = testNamespace, podKey(uid, found[i].Number), p.addressOf(uid)
		if found[i].StopSent && found[i].Exit != nil { // the Pod was being deleted
			found[i].Exit.Lost, found[i].Exit.Message = true, "the Pod was deleted"
		}
		if why, waits := p.waiting[uid]; waits && found[i].Alive() {
			found[i].Phase, found[i].Message, found[i].Address = facts.Starting, why, ""
		}
	}
	return found, err
}

func (p *podsOnHost) Pod(uid types.UID, number int64) (*corev1.Pod, bool) {
	found, err := p.Host.Observe(context.Background(), uid)
	p.mu.Lock()
	defer p.mu.Unlock()
	made, known := p.made[podKey(uid, number)]
	if err != nil || !known || !slices.ContainsFunc(found, func(i facts.Incarnation) bool { return i.Number == number }) {
		return nil, false
	}
	return made.DeepCopy(), true
}

func (p *podsOnHost) LastWords(uid types.UID, number int64) (text string, known bool) {
	found, err := p.Host.Observe(context.Background(), uid)
	if err != nil || len(found) == 0 || found[0].Number != number || found[0].Exit == nil {
		return "", false
	}
	said, err := os.ReadFile(filepath.Join(p.dir, podKey(uid, number), "state"))
	return string(said), err == nil
}

func (p *podsOnHost) Note(_ context.Context, uid types.UID, number int64, annotation, value string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	made, known := p.made[podKey(uid, number)]
	if !known {
		return runtime.ErrNotFound
	}
	made.Annotations = maps.Clone(made.Annotations)
	made.Annotations[annotation] = value
	return nil
}

func (p *podsOnHost) SetNamespace(uid types.UID, namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.namespaces = map[types.UID]string{uid: namespace}
}

func (p *podsOnHost) ReleaseExited(_ context.Context, _ types.UID, number int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = append(p.settled, number)
	return nil
}

// podFixture is a fixture whose multiplexers run in Pods.
type podFixture struct {
	*fixture
	pods   *podsOnHost
	client *fake.Clientset
	image  string
}

func newPodFixture(t testing.TB) *podFixture {
	t.Helper()
	f := &podFixture{fixture: &fixture{TB: t, WithT: NewWithT(t), dir: t.TempDir()}, client: fake.NewClientset()}
	f.openHost()
	f.startManager()
	t.Cleanup(f.clean)
	return f
}

func (f *podFixture) openHost() {
	f.Helper()
	var err error
	f.machine, err = host.New(host.Options{StateDir: filepath.Join(f.dir, "host"), ShimPath: filepath.Join(programs, "berth-shim")})
	f.Expect(err).NotTo(HaveOccurred())
	f.pods = &podsOnHost{Host: f.machine, dir: filepath.Join(f.dir, "pods"), client: f.client,
		made: map[string]*corev1.Pod{}, address: map[types.UID]string{}, waiting: map[types.UID]string{}}
}

// startManager starts a manager. The previous manager, if any, must be closed.
func (f *podFixture) startManager() {
	f.Helper()
	image := func(context.Context) (Image, error) {
		if f.image == "none" {
			return Image{}, errors.New("no image is known")
		}
		return Image{Name: "berth:test", PullPolicy: corev1.PullNever}, nil
	}
	var err error
	f.Runtime, err = NewInPods(f.pods, PodOptions{Client: f.client, Image: image})
	f.Expect(err).NotTo(HaveOccurred())
	for uid := range f.pods.address { // the manager reconciles the objects
		f.SetNamespace(uid, testNamespace)
	}
}

// Start sets the namespace of the object first, as a reconciler does.
func (f *podFixture) Start(ctx context.Context, p runtime.Process) error {
	f.SetNamespace(p.UID, testNamespace)
	return f.Runtime.Start(ctx, p)
}

func (f *podFixture) process(uid types.UID, incarnation int64, args ...string) runtime.Process {
	f.Helper()
	p := f.fixture.process(uid, incarnation, args...)
	config, err := json.Marshal(PodConfig{
		Config: lsp.Config{Language: "test", Folders: []string{f.dir}}, Secret: "lsp-" + string(uid), Pod: f.podConfig(uid),
	})
	f.Expect(err).NotTo(HaveOccurred())
	p.Config = config
	return p
}

func (f *podFixture) podConfig(uid types.UID) pod.Config {
	return pod.Config{Namespace: testNamespace, Image: "gopls:1", Owner: &metav1.OwnerReference{UID: uid, Controller: ptr.To(true)}}
}

// processWithImage returns a process whose Pod has another image.
func (f *podFixture) processWithImage(image string, uid types.UID, incarnation int64) runtime.Process {
	p := f.process(uid, incarnation)
	p.Config = []byte(strings.Replace(string(p.Config), "gopls:1", image, 1))
	return p
}

func (f *podFixture) start(uid types.UID, incarnation int64, args ...string) facts.Incarnation {
	f.Helper()
	f.Expect(f.Start(f.Context(), f.process(uid, incarnation, args...))).To(Succeed())
	return f.await(uid, incarnation, facts.Running)
}

func (f *podFixture) secretData(uid types.UID) map[string][]byte {
	f.Helper()
	secret, err := f.client.CoreV1().Secrets(testNamespace).Get(f.Context(), "lsp-"+string(uid), metav1.GetOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	return secret.Data
}

// connect connects as a client that has the Secret.
func (f *podFixture) connect(uid types.UID) *editor {
	f.Helper()
	f.pods.mu.Lock()
	at := url.URL{Scheme: "https", Host: net.JoinHostPort(f.pods.addressOf(uid), strconv.Itoa(transport.Port)), Path: transport.ClientPath}
	f.pods.mu.Unlock()
	client := http.DefaultTransport.(*http.Transport).Clone()
	client.TLSClientConfig, client.ForceAttemptHTTP2 = transport.Trust(f.secretData(uid)[transport.Certificate]), false
	conn, err := transport.Through(f.Context(), client, &at, string(f.secretData(uid)[transport.ClientToken]))
	f.Expect(err).NotTo(HaveOccurred())
	return f.newEditor(conn)
}

// podNumber returns the number of the running Pod.
func (f *podFixture) podNumber(uid types.UID) int64 {
	f.Helper()
	found, err := f.machine.Observe(context.Background(), uid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(found).To(HaveLen(1))
	return found[0].Number
}
