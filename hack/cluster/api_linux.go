// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// api is a client of the API server with the rights of the administrator.
type api struct{ kubernetes.Interface }

// api returns a client that uses the kubeconfig of the cluster.
func (c *cluster) api() (*api, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfigOf("admin"))
	if err != nil {
		return nil, err
	}
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	return &api{client}, err
}

func (a *api) ready(ctx context.Context) error {
	return a.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// nodeReady returns nil when Pods can run: the node is ready and has no taint, and the default service account exists.
func (a *api) nodeReady(ctx context.Context) error {
	node, err := a.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	said := errors.New("the node has no condition Ready yet")
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			said = nil
		} else if condition.Type == corev1.NodeReady {
			said = fmt.Errorf("the node is not ready: %s", condition.Message)
		}
	}
	if said == nil && len(node.Spec.Taints) > 0 {
		said = fmt.Errorf("the node has the taint %s", node.Spec.Taints[0].Key)
	}
	if said != nil {
		return said
	}
	_, err = a.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}
