// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// Environment variables that the manifests of the installation set for the manager, and the name of its container.
const (
	podNameVariable      = "POD_NAME"
	podNamespaceVariable = "POD_NAMESPACE"
	managerContainer     = "manager"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/log,verbs=get
// +kubebuilder:rbac:groups="",resources=pods/attach,verbs=get;create
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// openPods opens the backends that run Pods and language servers in the cluster of the manager, unless opts.cluster is nil.
func (b *backends) openPods(opts runtimeOptions) ([]runtime.Backend, error) {
	if opts.cluster == nil {
		return nil, nil
	}
	config := rest.CopyConfig(opts.cluster)
	config.QPS = -1 // no client-side rate limit, as in the manager: the API server limits requests itself
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Pods of the cluster: %w", err)
	}
	pods, err := pod.New(pod.Options{Client: api, Config: config, Namespaces: opts.namespaces, Logger: opts.log.WithName("pods")})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, pods.Close)
	servers, err := langserver.NewInPods(pods, langserver.PodOptions{
		Client: api, Logger: opts.log.WithName("lsp"),
		Image: func(ctx context.Context) (langserver.Image, error) { return multiplexerImage(ctx, api, opts.image) },
	})
	if err != nil {
		return nil, err
	}
	b.closes(servers.Close)
	b.serversInPods = servers
	return []runtime.Backend{{Type: v1alpha1.RuntimePod, Runtime: pods}}, nil
}

// multiplexerImage returns the image named by the flag, or else the image of the Pod of the manager itself. The nodes can pull that image, because the
// installation already uses it.
func multiplexerImage(ctx context.Context, api kubernetes.Interface, named string) (langserver.Image, error) {
	if named != "" {
		return langserver.Image{Name: named}, nil
	}
	name, namespace := os.Getenv(podNameVariable), os.Getenv(podNamespaceVariable)
	if name == "" || namespace == "" {
		return langserver.Image{}, errors.New("this manager does not run in a Pod, so it cannot use its own image for the multiplexer of a language server; " +
			"start it with --multiplexer-image")
	}
	own, err := api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return langserver.Image{}, fmt.Errorf("find the image of this manager: %w", err)
	}
	i := max(0, slices.IndexFunc(own.Spec.Containers, func(c corev1.Container) bool { return c.Name == managerContainer }))
	return langserver.Image{Name: own.Spec.Containers[i].Image, PullPolicy: own.Spec.Containers[i].ImagePullPolicy}, nil
}
