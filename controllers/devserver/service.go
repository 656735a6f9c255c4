// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/place"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// serve makes the Service of a server in a Pod what it should be: an address that stays over restarts. It says why there can be none.
func (k *Kind) serve(ctx context.Context, dev *v1alpha1.DevServer) (*lifecycle.Blocked, error) {
	wanted := serviceOf(dev)
	key := client.ObjectKeyFromObject(wanted)
	there := &corev1.Service{}
	err := k.client.Get(ctx, key, there)
	if apierrors.IsNotFound(err) {
		if err = k.client.Create(ctx, wanted); err == nil {
			return nil, nil //nolint:nilnil // nothing blocks
		}
		if apierrors.IsAlreadyExists(err) { // the cache is behind, and knows only Services of ours
			err = k.reader.Get(ctx, key, there)
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("make the Service %s: %w", key, err)
	case !metav1.IsControlledBy(there, dev):
		return &lifecycle.Blocked{
			Conflict: true,
			Reason:   v1alpha1.ReasonNameTaken,
			Message:  fmt.Sprintf("there is a Service %s already that is not of this DevServer; delete that one, or give this one another name", key.Name),
			Retry:    conflictRetry,
		}, nil
	}
	return nil, k.correct(ctx, there, wanted)
}

// correct changes what somebody, or another port, has made different, and leaves the rest to the cluster.
func (k *Kind) correct(ctx context.Context, there, wanted *corev1.Service) error {
	before := there.DeepCopy()
	for i := range there.Spec.Ports {
		there.Spec.Ports[i].NodePort = 0
	}
	same := equality.Semantic.DeepEqual(there.Spec.Ports, wanted.Spec.Ports) && equality.Semantic.DeepEqual(there.Spec.Selector, wanted.Spec.Selector)
	if same && there.Labels[pod.LabelManagedBy] == pod.ManagedBy {
		return nil
	}
	there = before.DeepCopy()
	there.Spec.Ports, there.Spec.Selector = wanted.Spec.Ports, wanted.Spec.Selector
	if there.Labels == nil {
		there.Labels = map[string]string{}
	}
	there.Labels[pod.LabelManagedBy] = pod.ManagedBy
	if err := k.client.Patch(ctx, there, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("correct the Service %s: %w", client.ObjectKeyFromObject(there), err)
	}
	return nil
}

// serviceOf is the Service of a server: its Pods, whatever incarnation they are, at the port that the server was given.
func serviceOf(dev *v1alpha1.DevServer) *corev1.Service {
	uid := string(dev.UID)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: dev.Namespace, Name: serviceName(dev),
			Labels:          map[string]string{pod.LabelManagedBy: pod.ManagedBy, pod.LabelUID: uid},
			OwnerReferences: []metav1.OwnerReference{*place.Owner(dev, "DevServer")},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{pod.LabelManagedBy: pod.ManagedBy, pod.LabelUID: uid},
			Ports: []corev1.ServicePort{{
				Name: "dev", Protocol: corev1.ProtocolTCP, Port: dev.Status.Port, TargetPort: intstr.FromInt32(dev.Status.Port),
			}},
		},
	}
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// serviceName is the name of the DevServer where a Service can have it: it must begin with a letter, and have no dots and at most 63 characters.
func serviceName(dev *v1alpha1.DevServer) string {
	if len(validation.IsDNS1035Label(dev.Name)) == 0 {
		return dev.Name
	}
	sum := sha256.Sum256([]byte(dev.Namespace + "/" + dev.Name))
	said := unfit.ReplaceAllString(dev.Name, "-")
	return "dev-" + strings.Trim(said[:min(len(said), 48)], "-") + "-" + hex.EncodeToString(sum[:4])
}

// serviceHost is how the Service is called everywhere in the cluster.
func serviceHost(dev *v1alpha1.DevServer) string {
	return serviceName(dev) + "." + dev.Namespace + ".svc"
}
