// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	// resync is how often informers deliver all objects again.
	resync = 12 * time.Hour
	// discoveryPeriod is how often the controllers check which kinds the API serves.
	discoveryPeriod = 30 * time.Second
	// recheckPeriod is how often each quota is recounted and each namespace is checked again.
	recheckPeriod = 5 * time.Minute
	// workers is the number of workers of each controller. kube-controller-manager has 5 to 20, for more objects than one machine has.
	workers = 5
)

// caches are the clients and informers that the controllers share.
type caches struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	typed    informers.SharedInformerFactory
	all      informerfactory.InformerFactory // typed, and metadata of the other kinds
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	started  chan struct{} // closed when the informers have started
}

// stripManagedFields removes the owners of fields, which are up to half of an object and which no controller reads.
func stripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// startControllers starts four controllers of kube-controller-manager, for namespaces, garbage collection, quotas and aggregated roles, and one that follows the
// wall clock.
func startControllers(ctx context.Context, config *rest.Config) error {
	config = rest.AddUserAgent(config, "controllers")
	config.QPS = -1 // no rate limit: the API server runs in this process
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for the controllers: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for the controllers: %w", err)
	}
	typed := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(stripManagedFields))
	c := caches{
		client: client, metadata: metadataClient, typed: typed,
		all:     informerfactory.NewInformerFactory(typed, metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, resync, metadatainformer.WithTransform(stripManagedFields))),
		mapper:  restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		started: make(chan struct{}),
	}
	// The mapper caches the kinds, so new kinds require a reset.
	go wait.Until(c.mapper.Reset, discoveryPeriod, ctx.Done())

	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient, client.Discovery().ServerPreferredNamespacedResources,
		typed.Core().V1().Namespaces(), recheckPeriod, corev1.FinalizerKubernetes)
	roles := clusterroleaggregation.NewClusterRoleAggregation(typed.Rbac().V1().ClusterRoles(), client.RbacV1())
	if err := c.startQuotas(ctx); err != nil {
		return err
	}
	if err := c.startGarbageCollector(ctx); err != nil {
		return err
	}
	go namespaces.Run(ctx, workers)
	go roles.Run(ctx, workers)
	c.all.Start(ctx.Done())
	close(c.started)
	return startClockController(ctx, config)
}

func (c caches) startQuotas(ctx context.Context) error {
	// The API serves no Pods, Services or volume claims, so quotas only count objects.
	countOnly := func(schema.GroupVersionResource) bool { return false }
	evaluators, err := core.NewEvaluators(generic.ListerFuncForResourceFunc(c.typed.ForResource), c.typed, countOnly)
	if err != nil {
		return fmt.Errorf("create the quota controller: %w", err)
	}
	configuration := generic.NewConfiguration(evaluators, quotainstall.DefaultIgnoredResources())
	discover := c.client.Discovery().ServerPreferredNamespacedResources
	quotas, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               c.client.CoreV1(),
		ResourceQuotaInformer:     c.typed.Core().V1().ResourceQuotas(),
		ResyncPeriod:              controller.StaticResyncPeriodFunc(recheckPeriod),
		InformerFactory:           c.all,
		ReplenishmentResyncPeriod: controller.StaticResyncPeriodFunc(resync),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      configuration.IgnoredResources,
		InformersStarted:          c.started,
		Registry:                  generic.NewRegistry(configuration.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return fmt.Errorf("create the quota controller: %w", err)
	}
	go quotas.Run(ctx, workers)
	go quotas.Sync(ctx, discover, discoveryPeriod)
	return nil
}

func (c caches) startGarbageCollector(ctx context.Context) error {
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, c.metadata, c.mapper, garbagecollector.DefaultIgnoredResources(), c.all, c.started)
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, c.client, c.metadata, c.mapper, graph)
	if err != nil {
		return fmt.Errorf("create the garbage collector: %w", err)
	}
	go collector.Run(ctx, workers, discoveryPeriod)
	go collector.Sync(ctx, c.client.Discovery(), discoveryPeriod)
	return nil
}
