// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

const (
	// annotationSpec contains the fingerprint of the configuration of a multiplexer's Pod. annotationServer contains the number of the newest incarnation of
	// the server whose start was requested.
	annotationSpec   = "berth.dev/multiplexer"
	annotationServer = "berth.dev/language-server"
)

// closing is how long a multiplexer may take to exit when its Pod is deleted, in addition to the grace period of its server.
const closing = 5 * time.Second

// Pods is the backend for multiplexers that run in Pods, such as pod.Runtime.
type Pods interface {
	Host
	// Pod returns the last known state of the Pod of an incarnation.
	Pod(uid types.UID, incarnation int64) (*corev1.Pod, bool)
	// LastWords returns the termination message of an incarnation that has ended.
	LastWords(uid types.UID, incarnation int64) (text string, known bool)
	// Note sets an annotation of the Pod.
	Note(ctx context.Context, uid types.UID, incarnation int64, annotation, value string) error
}

// PodOptions configure how multiplexers are run in Pods.
type PodOptions struct {
	// Client is the client for the API server. It is used for the Secrets that authenticate connections to multiplexers.
	Client kubernetes.Interface
	// Image returns the image that contains the multiplexer, and its pull policy. It is called at each start.
	Image func(ctx context.Context) (Image, error)
	// Logger receives log messages; the zero value discards them.
	Logger logr.Logger
}

// Image is an image that has berth-lsp-pod in its PATH.
type Image struct {
	Name       string
	PullPolicy corev1.PullPolicy
}

// PodConfig is the runtime.Process.Config of a language server in a Pod. Secret is the name of the Secret that authenticates connections to the multiplexer.
// The Runtime creates that Secret if it does not exist.
type PodConfig struct {
	lsp.Config
	Secret string     `json:"secret"`
	Pod    pod.Config `json:"pod"`
}

// NewInPods returns a runtime whose multiplexers are the main processes of Pods. It connects to a multiplexer only when the object of the multiplexer is
// observed. Managers that are not the leader must not connect, because a multiplexer accepts only one manager at a time.
func NewInPods(pods Pods, options PodOptions) (*Runtime, error) {
	if options.Client == nil || options.Image == nil {
		return nil, errors.New("language servers in Pods: no client or no image is set")
	}
	return newRuntime(pods, &inPods{pods: pods, client: options.Client, image: options.Image}, options.Logger), nil
}

// inPods is the site for multiplexers in Pods: each multiplexer is the main process of a Pod. The state of a multiplexer is in the termination message of its
// Pod, which can be read after the multiplexer has exited.
type inPods struct {
	pods   Pods
	client kubernetes.Interface
	image  func(context.Context) (Image, error)
	homes  sync.Map // the namespace of each object that is reconciled
}

func (s *inPods) begin(ctx context.Context, uid types.UID, _ *facts.Incarnation, p *runtime.Process) (runtime.Process, error) {
	if p == nil {
		return runtime.Process{}, errors.New("language servers in Pods: the start does not contain the configuration of the server")
	}
	config, err := podConfig(p)
	if err != nil {
		return runtime.Process{}, err
	}
	image, err := s.image(ctx)
	if err != nil {
		return runtime.Process{}, err
	}
	if _, err := s.keys(ctx, secretOf(uid, config)); err != nil {
		return runtime.Process{}, err
	}
	config.Pod.Annotations = map[string]string{annotationSpec: fingerprint(config), annotationServer: strconv.FormatInt(p.Incarnation, 10)}
	equip(&config.Pod, config.Secret, image)
	text, err := json.Marshal(config.Pod)
	if err != nil {
		return runtime.Process{}, fmt.Errorf("encode the configuration of the Pod: %w", err)
	}
	return runtime.Process{
		Incarnation: p.Incarnation, Command: command(), StopSignal: "SIGTERM", Grace: p.Grace + closing, Config: text,
	}, nil
}

func podConfig(p *runtime.Process) (PodConfig, error) {
	var config PodConfig
	if err := json.Unmarshal(p.Config, &config); err != nil {
		return config, fmt.Errorf("read the configuration of the language server: %w", err)
	}
	if config.Secret == "" {
		return config, errors.New("the configuration names no Secret with the token of the multiplexer")
	}
	return config, nil
}

// fingerprint returns a hash of the configuration of a Pod and the name of its Secret.
func fingerprint(config PodConfig) string {
	text, _ := json.Marshal([]any{config.Secret, config.Pod}) // cannot fail: it was decoded from JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

func (s *inPods) fits(uid types.UID, held *facts.Incarnation, p runtime.Process) bool {
	config, err := podConfig(&p)
	made, known := s.pods.Pod(uid, held.Number)
	return err != nil || !known || made.Annotations[annotationSpec] == fingerprint(config)
}

// environment makes the server inherit the environment of the container, which only the multiplexer knows.
func (*inPods) environment(launch *lsp.Launch, asked []string) {
	launch.Env, launch.Inherit = asked, true
}

func (s *inPods) dial(ctx context.Context, uid types.UID) (net.Conn, error) {
	newest, err := runtime.Newest(ctx, s.pods, uid)
	if err != nil {
		return nil, err
	}
	if newest == nil || newest.Address == "" {
		return nil, errors.New("its Pod has no IP address yet")
	}
	made, known := s.pods.Pod(uid, newest.Number)
	if !known {
		return nil, errors.New("its Pod no longer exists")
	}
	if err := s.identify(uid, newest, made); err != nil {
		return nil, err
	}
	keys, err := s.keys(ctx, secretOfPod(made))
	if err != nil {
		return nil, err
	}
	return transport.Dial(ctx, net.JoinHostPort(newest.Address, strconv.Itoa(transport.Port)), keys)
}

// identify returns an error unless a Pod is the one that this runtime has created for an object. The multiplexer in the Pod receives the environment of the
// server, which can contain secrets, and everyone who can create Pods in another namespace can give a Pod the labels of this object. The namespace is the proof;
// the name and the controller only prevent that a Pod is taken for another one by mistake.
func (s *inPods) identify(uid types.UID, observed *facts.Incarnation, made *corev1.Pod) error {
	home, known := s.homes.Load(uid)
	owner := metav1.GetControllerOf(made)
	switch {
	case !known:
		return errors.New("the namespace of the object is not known, because the object is not reconciled")
	case made.Namespace != home:
		return fmt.Errorf("Pod %s/%s is not in namespace %s of the object; delete the Pod", made.Namespace, made.Name, home)
	case observed.Namespace != made.Namespace || observed.PodName != made.Name:
		return fmt.Errorf("Pod %s/%s was replaced by Pod %s/%s", observed.Namespace, observed.PodName, made.Namespace, made.Name)
	case owner == nil || owner.UID != uid:
		return fmt.Errorf("Pod %s/%s is not controlled by the object; delete the Pod", made.Namespace, made.Name)
	}
	return nil
}

func (s *inPods) setNamespace(uid types.UID, namespace string) {
	if namespace == "" {
		s.homes.Delete(uid)
		return
	}
	s.homes.Store(uid, namespace)
}

// state returns the state that the node reports for a multiplexer that has exited. While the multiplexer is running, its state file cannot be read, and state
// returns an empty report.
func (s *inPods) state(ctx context.Context, uid types.UID) (lsp.Report, error) {
	newest, err := runtime.Newest(ctx, s.pods, uid)
	if err != nil || newest == nil {
		return lsp.Report{}, err
	}
	var state lsp.Report
	if text, known := s.pods.LastWords(uid, newest.Number); known {
		if err := json.Unmarshal([]byte(text), &state); err != nil {
			return lsp.Report{}, nil //nolint:nilerr // the multiplexer was killed while it wrote the report
		}
	}
	return state, nil
}

func (s *inPods) note(ctx context.Context, uid types.UID, held *facts.Incarnation, incarnation int64) error {
	if s.noted(uid, held) >= incarnation {
		return nil
	}
	return s.pods.Note(ctx, uid, held.Number, annotationServer, strconv.FormatInt(incarnation, 10))
}

func (s *inPods) noted(uid types.UID, held *facts.Incarnation) int64 {
	if held == nil {
		return 0
	}
	made, known := s.pods.Pod(uid, held.Number)
	if !known {
		return 0
	}
	number, _ := strconv.ParseInt(made.Annotations[annotationServer], 10, 64)
	return cmp.Or(number, held.Number) // without the annotation: the number of a Pod is that of the server for which it was created
}

// revives returns false, because the configuration of a Pod is known only when a server is started.
func (*inPods) revives() bool { return false }

// silence returns a longer time than on a host, because the connection uses the network.
func (*inPods) silence() time.Duration { return 10 * time.Second }

// forget removes only the namespace: everything outside the Pod has the object as its owner and is deleted with it.
func (s *inPods) forget(uid types.UID) error {
	s.homes.Delete(uid)
	return nil
}
