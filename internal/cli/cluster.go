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

	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// What a manager in a Pod knows of it, from the manifest of the installation.
const (
	podNameVariable      = "POD_NAME"
	podNamespaceVariable = "POD_NAMESPACE"
	managerContainer     = "manager"
)

// inCluster is the cluster of the manager as a runtime.
type inCluster struct {
	pods   *pod.Runtime
	inPods *langserver.Runtime
}

// LanguageServersInPods gives the runtime of those; nil without Pods.
func (c *inCluster) LanguageServersInPods() *langserver.Runtime {
	if c == nil {
		return nil
	}
	return c.inPods
}

// Close lets go of it, and leaves what runs alone.
func (c *inCluster) Close() error {
	if c == nil {
		return nil
	}
	c.inPods.Close()
	return c.pods.Close()
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/log,verbs=get
// +kubebuilder:rbac:groups="",resources=pods/attach,verbs=get;create
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// openPods follows the Pods of Berth in the cluster of the manager.
func openPods(config *rest.Config, opts runtimeOptions) (*inCluster, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // as for the manager: the API server itself says how much is too much
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the Pods of the cluster: %w", err)
	}
	pods, err := pod.New(pod.Options{Client: api, Config: config, Namespaces: opts.namespaces, Logger: opts.log.WithName("pods")})
	if err != nil {
		return nil, err
	}
	servers, err := langserver.NewInPods(pods, langserver.PodOptions{
		Client: api, Logger: opts.log.WithName("lsp"),
		Image: func(ctx context.Context) (langserver.Image, error) { return multiplexerImage(ctx, api, opts.image) },
	})
	if err != nil {
		return nil, errors.Join(err, pods.Close())
	}
	return &inCluster{pods: pods, inPods: servers}, nil
}

// multiplexerImage is the image that was named, or else that of the Pod of the manager itself: whoever installed it has put it where nodes find it.
func multiplexerImage(ctx context.Context, api kubernetes.Interface, named string) (langserver.Image, error) {
	if named != "" {
		return langserver.Image{Name: named}, nil
	}
	name, namespace := os.Getenv(podNameVariable), os.Getenv(podNamespaceVariable)
	if name == "" || namespace == "" {
		return langserver.Image{}, errors.New("this manager does not run in a Pod whose image it could take for the multiplexer of a language server; " +
			"start it with --multiplexer-image")
	}
	own, err := api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return langserver.Image{}, fmt.Errorf("find the image of this manager: %w", err)
	}
	i := max(0, slices.IndexFunc(own.Spec.Containers, func(c corev1.Container) bool { return c.Name == managerContainer }))
	return langserver.Image{Name: own.Spec.Containers[i].Image, PullPolicy: own.Spec.Containers[i].ImagePullPolicy}, nil
}
