// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install renders the two ways to install Berth into a cluster, config/default and charts/berth, so that tests can compare them. It is a separate
// module, so that kustomize, Helm and Prometheus are not dependencies of Berth.
package install

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Namespace is the namespace that config/default installs into, and that the documentation of the chart uses.
const Namespace = "berth-system"

// Object is one object of a manifest.
type Object map[string]any

// At returns the value at a path of fields, or nil.
func (o Object) At(fields ...string) any {
	var value any = map[string]any(o)
	for _, field := range fields {
		inner, _ := value.(map[string]any)
		value = inner[field]
	}
	return value
}

// Kind returns the kind of the object.
func (o Object) Kind() string { return fmt.Sprint(o["kind"]) }

// Name returns the name of the object.
func (o Object) Name() string { return fmt.Sprint(o.At("metadata", "name")) }

// Objects are the objects of an installation, by group, kind, namespace and name.
type Objects map[string]Object

// Get returns the object with that kind and name, or nil.
func (o Objects) Get(kind, name string) Object {
	for _, object := range o {
		if object.Kind() == kind && object.Name() == name {
			return object
		}
	}
	return nil
}

// Kustomize renders a kustomization of the project, such as config/default. It returns an error if rendering fails or two objects have the same name.
func Kustomize(root, folder string) (Objects, error) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, folder))
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", folder, err)
	}
	text, err := rendered.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", folder, err)
	}
	return parse(map[string]string{folder: string(text)})
}

// LoadChart loads charts/berth.
func LoadChart(root string) (*chart.Chart, error) {
	read, err := loader.Load(filepath.Join(root, "charts", "berth"))
	if err != nil {
		return nil, fmt.Errorf("read charts/berth: %w", err)
	}
	return read, nil
}

// Helm renders the chart as helm template does. values is YAML that overrides the values of the chart. It returns an error if the values do not match the
// schema of the chart, if rendering fails, or if two objects have the same name.
func Helm(root, namespace, values string) (Objects, error) {
	read, err := LoadChart(root)
	if err != nil {
		return nil, err
	}
	return render(read, namespace, values)
}

// HelmSubchart renders a chart that contains nothing but the chart as a dependency with the condition berth.enabled. values is YAML that overrides the values of
// the parent chart, which include those of the chart under the key berth. It returns the same errors as Helm.
func HelmSubchart(root, namespace, values string) (Objects, error) {
	read, err := LoadChart(root)
	if err != nil {
		return nil, err
	}
	dependency := &chart.Dependency{Name: read.Name(), Version: read.Metadata.Version, Condition: read.Name() + ".enabled"}
	parent := &chart.Chart{Metadata: &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "parent", Version: "1.0.0", Dependencies: []*chart.Dependency{dependency}}}
	parent.AddDependency(read)
	return render(parent, namespace, values)
}

func render(read *chart.Chart, namespace, values string) (Objects, error) {
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return nil, fmt.Errorf("parse values: %w", err)
	}
	if err := chartutil.ProcessDependencies(read, given); err != nil {
		return nil, fmt.Errorf("process the dependencies: %w", err)
	}
	release := common.ReleaseOptions{Name: "berth", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(read, given, release, nil)
	if err != nil {
		return nil, fmt.Errorf("check the values: %w", err)
	}
	files, err := engine.Render(read, all)
	if err != nil {
		return nil, fmt.Errorf("render the chart %s: %w", read.Name(), err)
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, ".txt") })
	return parse(files)
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// parse returns the objects in YAML files. It returns an error if two objects have the same key.
func parse(files map[string]string) (Objects, error) {
	objects := Objects{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, text := range separator.Split(files[file], -1) {
			object := Object{}
			if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
				return nil, fmt.Errorf("%s: %w in %s", file, err, text)
			}
			if len(object) == 0 {
				continue
			}
			group, _, _ := strings.Cut(fmt.Sprint(object["apiVersion"]), "/")
			key := fmt.Sprintf("%s %s %v/%s", group, object.Kind(), object.At("metadata", "namespace"), object.Name())
			if objects[key] != nil {
				return nil, fmt.Errorf("%s: duplicate object %s", file, key)
			}
			objects[key] = object
		}
	}
	return objects, nil
}

// ofHelm are the labels that only the chart adds to its objects.
var ofHelm = []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}

// Comparable removes the intended differences between the two ways: the labels and annotations of Helm, the Namespace, which helm install creates, and the hooks
// of Helm, such as the Pod of helm test.
func (o Objects) Comparable() Objects {
	maps.DeleteFunc(o, func(_ string, object Object) bool {
		return object.Kind() == "Namespace" || object.At("metadata", "annotations", "helm.sh/hook") != nil
	})
	for _, object := range o {
		metadata := object["metadata"].(map[string]any) // present, because parse has read the name from it
		if labels, ok := metadata["labels"].(map[string]any); ok {
			for _, name := range ofHelm {
				delete(labels, name)
			}
		}
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, "helm.sh/resource-policy")
			if len(annotations) == 0 {
				delete(metadata, "annotations")
			}
		}
	}
	return o
}
