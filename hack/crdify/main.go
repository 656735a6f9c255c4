// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crdify compares the CustomResourceDefinitions in folder NEW with those of the last release in folder OLD, and lists the changes that break existing
// objects or clients. With -update it copies NEW to OLD instead.
//
// It uses the library of sigs.k8s.io/crdify. The command of crdify compares a single file, and needs git and Kubernetes clients to be compiled.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/crdify/pkg/config"
	"sigs.k8s.io/crdify/pkg/runner"
	"sigs.k8s.io/crdify/pkg/validations"
	"sigs.k8s.io/yaml"
)

func main() {
	update := flag.Bool("update", false, "copy NEW to OLD, without descriptions")
	flag.Parse()
	if flag.NArg() != 2 {
		fail(errors.New("usage: crdify [-update] OLD NEW"))
	}
	if *update {
		if err := copyDefinitions(flag.Arg(0), flag.Arg(1)); err != nil {
			fail(err)
		}
		return
	}
	changes, err := compare(flag.Arg(0), flag.Arg(1))
	if err != nil {
		fail(err)
	}
	for _, change := range changes {
		fmt.Println(change)
	}
	if len(changes) > 0 {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "crdify:", err)
	os.Exit(1)
}

// compare returns one line for each incompatible change from the definitions in folder before to those in folder after. A removed definition is one, too.
func compare(before, after string) ([]string, error) {
	released, err := read(before)
	if err != nil {
		return nil, err
	}
	current, err := read(after)
	if err != nil {
		return nil, err
	}
	checks, err := runner.New(&config.Config{
		UnhandledEnforcement: config.EnforcementPolicyError,
		Conversion:           config.ConversionPolicyIgnore,
	}, runner.DefaultRegistry())
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(released)) {
		if current[name] == nil {
			lines = append(lines, name+": the definition was removed")
			continue
		}
		for _, version := range released[name].Spec.Versions { // crdify does not report a version that is no longer served
			served := func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
				return v.Name == version.Name && v.Served
			}
			if version.Served && !slices.ContainsFunc(current[name].Spec.Versions, served) {
				lines = append(lines, fmt.Sprintf("%s %s: the version is no longer served", name, version.Name))
			}
		}
		results := checks.Run(released[name], current[name])
		lines = append(lines, failures(name, results.CRDValidation)...)
		for _, versions := range []map[string]map[string][]validations.ComparisonResult{results.SameVersionValidation, results.ServedVersionValidation} {
			for _, version := range slices.Sorted(maps.Keys(versions)) {
				for _, property := range slices.Sorted(maps.Keys(versions[version])) {
					lines = append(lines, failures(name+" "+version+" "+property, versions[version][property])...)
				}
			}
		}
	}
	return lines, nil
}

func failures(where string, results []validations.ComparisonResult) []string {
	var lines []string
	for _, result := range results {
		for _, text := range result.Errors {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", where, result.Name, text))
		}
	}
	slices.Sort(lines)
	return lines
}

// read returns the definitions in the files of a folder by their names, without descriptions, which may change.
func read(folder string) (map[string]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s contains no CustomResourceDefinitions", folder)
	}
	definitions := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, definition); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range definition.Spec.Versions {
			withoutDescriptions(version.Schema.OpenAPIV3Schema)
		}
		definitions[definition.Name] = definition
	}
	return definitions, nil
}

// copyDefinitions replaces the files in folder to with the definitions in folder from.
func copyDefinitions(to, from string) error {
	definitions, err := read(from)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for name, definition := range definitions {
		text, err := yaml.Marshal(definition)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name+".yaml"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func withoutDescriptions(schema *apiextensionsv1.JSONSchemaProps) {
	schema.Description = ""
	for name, property := range schema.Properties {
		withoutDescriptions(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		withoutDescriptions(schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		withoutDescriptions(schema.AdditionalProperties.Schema)
	}
}
