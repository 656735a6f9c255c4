// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api checks with a real API server which values of the kinds of berth.dev are refused, which are set by default, and which are preserved.
package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	kindInstance       = "Instance"
	kindDevServer      = "DevServer"
	kindLanguageServer = "LanguageServer"
	kindAction         = "Action"
	kindDiscovery      = "InstanceDiscovery"
	kindPlan           = "Plan"
	kindStrategy       = "Strategy"
	kindStrategyRun    = "StrategyRun"

	// waitForAuthorizer bounds the time until the API server uses a new role or binding.
	waitForAuthorizer = 30 * time.Second
)

var (
	// config is the configuration for clients of the API server that runs for the tests of this package.
	config *rest.Config
	// k8s is a client of that API server.
	k8s client.Client
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	environment := testenv.New(filepath.Join("..", ".."))
	var err error
	config, err = environment.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start an API server:", err)
		return 1
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the control plane:", err)
		}
	}()
	k8s, err = client.New(config, client.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, "create a client:", err)
		return 1
	}
	return m.Run()
}

// minimalObject is the smallest valid Instance and DevServer.
const minimalObject = `
metadata: {namespace: default}
spec:
  process:
    command: [sleep, infinity]
`

// requiredFields contains, by kind, the required fields that are missing in minimalObject.
var requiredFields = map[string]string{
	kindLanguageServer: `spec: {language: go, workspace: {folders: [/src]}}`,
}

// minimalOtherObjects contains the smallest valid object of each kind in otherKinds.
var minimalOtherObjects = map[string]string{
	kindAction:      `{metadata: {namespace: default}, spec: {strategize: {strategies: [{name: lint}]}}}`,
	kindDiscovery:   `{metadata: {namespace: default}, spec: {sources: [{name: all, type: Tmux}]}}`,
	kindPlan:        `{metadata: {namespace: default}, spec: {actionRef: {name: release}}}`,
	kindStrategy:    `{metadata: {namespace: default}, spec: {process: {command: [sleep, infinity]}}}`,
	kindStrategyRun: `{metadata: {namespace: default}, spec: {strategyRef: {name: lint}}}`,
}

// object returns the smallest valid object of the kind with the fragment merged into it. If the fragment sets no name, object
// sets the given name.
func object(t *testing.T, kind, name, fragment string) *unstructured.Unstructured {
	t.Helper()
	content := parse(t, minimalOtherObjects[kind])
	if len(content) == 0 {
		content = parse(t, minimalObject)
		merge(content, parse(t, requiredFields[kind]))
	}
	merge(content, parse(t, fragment))
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	if o.GetName() == "" {
		o.SetName(name)
	}
	return o
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	content := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &content); err != nil {
		t.Fatalf("parse %q: %v", text, err)
	}
	return content
}

// merge applies a JSON merge patch, the parameter "over", to content. A null value removes a field.
func merge(content, over map[string]any) {
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		outer, wasMap := content[key].(map[string]any)
		switch {
		case value == nil:
			delete(content, key)
		case isMap && wasMap:
			merge(outer, inner)
		default:
			content[key] = value
		}
	}
}

// dryRun sends the object to the API server as a dry run.
func dryRun(ctx context.Context, o *unstructured.Unstructured) error {
	return k8s.Create(ctx, o, client.DryRunAll, client.FieldValidation("Strict"))
}
