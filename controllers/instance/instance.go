// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance is what is special to Instances: a terminal, and how to take it.
package instance

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// The size of a terminal when the spec leaves it open.
const (
	defaultColumns = 120
	defaultRows    = 40
)

// Kind is the kind Instance.
type Kind struct{}

var _ process.Kind = Kind{}

// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=instances/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=instances/finalizers,verbs=update

// Setup registers the controller of Instances with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	return process.Setup(mgr, Kind{}, deps)
}

// Resource is the plural lower-case name.
func (Kind) Resource() string { return "instances" }

// New gives an empty Instance.
func (Kind) New() process.Object { return &v1alpha1.Instance{} }

// NewList gives an empty list of Instances.
func (Kind) NewList() client.ObjectList { return &v1alpha1.InstanceList{} }

// Prepare gives the process its terminal. The size is no part of the fingerprint: whoever attaches changes it anyway.
func (Kind) Prepare(_ context.Context, object process.Object, _ *runtime.Incarnation, plan *process.Plan) error {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	plan.Process.Terminal = &runtime.Terminal{
		Columns: ptr.Deref(instance.Spec.Terminal.Columns, defaultColumns),
		Rows:    ptr.Deref(instance.Spec.Terminal.Rows, defaultRows),
	}
	return nil
}

// Look says how to attach. A session that runs is ready: there is nothing to ask.
func (k Kind) Look(ctx context.Context, object process.Object, _ runtime.Incarnation, _ *lifecycle.Observed) (time.Duration, error) {
	k.Rest(ctx, object)
	return 0, nil
}

// Rest says how to attach: the same command as ever, so that it can be kept over restarts.
func (Kind) Rest(_ context.Context, object process.Object) {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	instance.Status.AttachCommand = attachCommand(instance)
}

// Forget has nothing to do: the kind keeps nothing in memory.
func (Kind) Forget(types.UID) {}

func attachCommand(instance *v1alpha1.Instance) string {
	command := "berth attach instance/" + instance.Name
	if instance.Namespace != "default" {
		command += " -n " + instance.Namespace
	}
	return command
}
