// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// takenRetry is how soon to check whether a foreign Service with the same name is gone. refusedRetry is how soon to retry after the cluster refused a Service.
const (
	takenRetry   = 2 * time.Second
	refusedRetry = 10 * time.Second
)

// Services creates and corrects the Services of objects that run in Pods. The address of a Service stays the same when the Pod is replaced. Client reads from a
// cache, Reader from the API server.
type Services struct {
	Client client.Client
	Reader client.Reader
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch

// Serve creates the Service wanted for an object, or corrects the existing one. kind is the kind of the object, for messages. Serve returns a Blocked if the
// name is taken or the cluster refuses the Service, and an error for every other failure.
func (s Services) Serve(ctx context.Context, object process.Object, kind string, wanted *corev1.Service) (*lifecycle.Blocked, error) {
	key := client.ObjectKeyFromObject(wanted)
	there := &corev1.Service{}
	err := s.Client.Get(ctx, key, there)
	if apierrors.IsNotFound(err) {
		if err = s.Client.Create(ctx, wanted); err == nil {
			return nil, nil //nolint:nilnil // nothing blocks
		}
		if apierrors.IsAlreadyExists(err) { // the cache may be stale, and it contains only Services that Berth created
			err = s.Reader.Get(ctx, key, there)
		}
	}
	switch {
	case refuses(err):
		return refused(kind, err), nil
	case err != nil:
		return nil, fmt.Errorf("create Service %s: %w", key, err)
	case !metav1.IsControlledBy(there, object):
		return &lifecycle.Blocked{
			Conflict: true,
			Reason:   v1alpha1.ReasonNameTaken,
			Message:  fmt.Sprintf("Service %s already exists and does not belong to this %s. Delete that Service, or recreate this object with another name.", key.Name, kind),
			Retry:    takenRetry,
		}, nil
	}
	if err = s.correct(ctx, there, wanted); refuses(err) {
		return refused(kind, err), nil
	}
	return nil, err
}

func refused(kind string, err error) *lifecycle.Blocked {
	return &lifecycle.Blocked{
		Reason:  v1alpha1.ReasonStartFailed,
		Message: fmt.Sprintf("Cannot create the Service of this %s; retrying: %v", kind, err),
		Retry:   refusedRetry,
	}
}

// refuses reports whether the cluster rejects the Service until a user changes something, for example a quota, a policy, or an address range that is full.
func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed to allocate")
}

// correct updates ports, selector and label if they differ from the wanted ones: another client may have changed them, or the object has a new port. It
// does not change other fields.
func (s Services) correct(ctx context.Context, there, wanted *corev1.Service) error {
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
	if err := s.Client.Patch(ctx, there, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("update Service %s: %w", client.ObjectKeyFromObject(there), err)
	}
	return nil
}

// Service returns a Service with the given name that forwards one port to the Pod of an object. It need not change when the next incarnation gets a new Pod.
func Service(object process.Object, kind, name, port string, number int32) *corev1.Service {
	labels := map[string]string{pod.LabelManagedBy: pod.ManagedBy, pod.LabelUID: string(object.GetUID())}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.GetNamespace(), Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*ownerReference(object, kind)},
		},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Name: port, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: intstr.FromInt32(number)}},
		},
	}
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// ServiceName returns name if it is a valid Service name. Such a name begins with a letter, has no dots and has at most 63 characters. Otherwise ServiceName
// returns word, up to 48 characters of the name of the object, and a hash of its namespace and name, joined by hyphens.
func ServiceName(word, name string, object client.Object) string {
	if len(validation.IsDNS1035Label(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(object.GetNamespace() + "/" + object.GetName()))
	said := unfit.ReplaceAllString(object.GetName(), "-")
	return word + "-" + strings.Trim(said[:min(len(said), 48)], "-") + "-" + hex.EncodeToString(sum[:4])
}
