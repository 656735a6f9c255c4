// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install renders the two ways to install Berth into a cluster, config/default and charts/berth, so that tests can hold them against each other.
// It is a module of its own: kustomize, Helm and Prometheus are no dependencies of Berth.
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
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Namespace is where config/default installs to, and the chart by its documentation.
const Namespace = "berth-system"

// Object is one object of a manifest.
type Object map[string]any

// At gives what is at a path of fields, or nil.
func (o Object) At(fields ...string) any {
	var value any = map[string]any(o)
	for _, field := range fields {
		inner, _ := value.(map[string]any)
		value = inner[field]
	}
	return value
}

// Kind is the kind of the object.
func (o Object) Kind() string { return fmt.Sprint(o["kind"]) }

// Name is its name.
func (o Object) Name() string { return fmt.Sprint(o.At("metadata", "name")) }

// Objects are those of an installation, by group, kind, namespace and name.
type Objects map[string]Object

// Get gives the object of that kind and name, or nil.
func (o Objects) Get(kind, name string) Object {
	for _, object := range o {
		if object.Kind() == kind && object.Name() == name {
			return object
		}
	}
	return nil
}

// Kustomize renders a kustomization of the project, such as config/default.
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

// LoadChart reads charts/berth.
func LoadChart(root string) (*chart.Chart, error) {
	read, err := loader.Load(filepath.Join(root, "charts", "berth"))
	if err != nil {
		return nil, fmt.Errorf("read charts/berth: %w", err)
	}
	return read, nil
}

// Helm renders the chart as helm template does: values are YAML over those of the chart, and held against their schema.
func Helm(root, namespace, values string) (Objects, error) {
	read, err := LoadChart(root)
	if err != nil {
		return nil, err
	}
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return nil, fmt.Errorf("read the values: %w", err)
	}
	release := common.ReleaseOptions{Name: "berth", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(read, given, release, nil)
	if err != nil {
		return nil, fmt.Errorf("check the values: %w", err)
	}
	files, err := engine.Render(read, all)
	if err != nil {
		return nil, fmt.Errorf("render charts/berth: %w", err)
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, ".txt") })
	return parse(files)
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// parse reads the objects of YAML files. Two objects of the same name are an error.
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
				return nil, fmt.Errorf("%s: %s is there twice", file, key)
			}
			objects[key] = object
		}
	}
	return objects, nil
}

// ofHelm are the labels that only a chart gives its objects.
var ofHelm = []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}

// Comparable takes away what the two ways differ in on purpose: the labels and annotations of Helm, and the Namespace, which helm install makes.
func (o Objects) Comparable() Objects {
	maps.DeleteFunc(o, func(_ string, object Object) bool { return object.Kind() == "Namespace" })
	for _, object := range o {
		metadata := object["metadata"].(map[string]any) // parse has found its name there
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
