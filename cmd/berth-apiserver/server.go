// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"
)

// flags returns the flags of the API server, which have the same names and meanings as those of kube-apiserver.
func flags(o options) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(o.port),
		"--cert-dir=" + o.pki(""),
		"--tls-cert-file=" + o.pki("apiserver.crt"),
		"--tls-private-key-file=" + o.pki("apiserver.key"),
		"--etcd-servers=" + endpoint,
		"--token-auth-file=" + o.pki("tokens.csv"),
		"--anonymous-auth=false",
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + o.pki("service-account.key"),
		"--service-account-signing-key-file=" + o.pki("service-account.key"),
		"--profiling=false",
		// The cache decodes every object and keeps it, and every change of the last 75 seconds. One manager, which has a cache of its own, needs it less than memory.
		"--watch-cache=false",
		// End watches on shutdown. Otherwise a client such as kubectl get -w would delay the shutdown by a minute.
		"--shutdown-watch-termination-grace-period=1s",
	}
}

// serve serves the API until the context is done.
func serve(ctx context.Context, o options) error {
	// The API server itself uses deprecated APIs, and its warnings would fill the log.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	config, err := configure(ctx, o)
	if err != nil {
		return fmt.Errorf("configure the API server: %w", err)
	}
	chain, err := server.CreateServerChain(config)
	if err != nil {
		return fmt.Errorf("create the API server: %w", err)
	}
	loopback := rest.CopyConfig(chain.GenericAPIServer.LoopbackClientConfig)
	err = chain.GenericAPIServer.AddPostStartHook("berth-controllers", func(hook genericapiserver.PostStartHookContext) error {
		if err := startControllers(hook, loopback); err != nil && hook.Err() == nil {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the API server: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare the API server: %w", err)
	}
	if err := prepared.Run(ctx); err != nil {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

func configure(ctx context.Context, o options) (server.CompletedConfig, error) {
	settings := server.NewOptions()
	var sets cliflag.NamedFlagSets
	settings.AddFlags(&sets)
	all := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		all.AddFlagSet(set)
	}
	if err := all.Parse(flags(o)); err != nil {
		return server.CompletedConfig{}, err
	}
	completed, err := settings.Complete(ctx, nil, []net.IP{})
	if err != nil {
		return server.CompletedConfig{}, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return server.CompletedConfig{}, utilerrors.NewAggregate(errs)
	}
	config, err := server.NewConfig(completed)
	if err != nil {
		return server.CompletedConfig{}, err
	}
	// With more than one server, an API server waits five seconds before it reports that a new kind is served.
	config.APIExtensions.ExtraConfig.MasterCount = 1
	return config.Complete()
}
