// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the API types of berth.dev/v1alpha1: Kubernetes resources for the processes that coding agents need.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +groupName=berth.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is berth.dev/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "berth.dev", Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that generated code uses.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects the functions that AddToScheme calls.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&Action{}, &ActionList{},
		&DevServer{}, &DevServerList{},
		&Instance{}, &InstanceList{},
		&InstanceDiscovery{}, &InstanceDiscoveryList{},
		&LanguageServer{}, &LanguageServerList{},
		&Plan{}, &PlanList{},
		&Strategy{}, &StrategyList{},
		&StrategyRun{}, &StrategyRunList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
