// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

type schemaProps = apiextensionsv1.JSONSchemaProps

// definition reads the generated CustomResourceDefinition of a kind.
func definition(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	path := filepath.Join("..", "..", "config", "crd", "bases", "berth.dev_"+plural(kind)+".yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return crd
}

func plural(kind string) string {
	name := strings.ToLower(kind)
	if stem, ies := strings.CutSuffix(name, "y"); ies {
		return stem + "ies"
	}
	return name + "s"
}

func specOf(t *testing.T, kind string) schemaProps {
	t.Helper()
	return definition(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
}

// walk visits a schema and all nested schemas, sorted by name. In a path, [] stands for the items of a list.
func walk(schema schemaProps, path string, visit func(path string, schema schemaProps)) {
	visit(path, schema)
	names := make([]string, 0, len(schema.Properties))
	for name := range schema.Properties {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		walk(schema.Properties[name], path+"."+name, visit)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		walk(*schema.Items.Schema, path+"[]", visit)
	}
}

func TestDefinition_ProcessKinds(t *testing.T) {
	shortNames := map[string]string{kindInstance: "inst", kindDevServer: "dsv", kindLanguageServer: "lsv"}
	ownColumns := map[string][]string{
		kindInstance:       {"Ready", "Reason", "Waiting", "Attach", "Restarts", "Runtime", "Session", "Host", "Node", "PID", "Active", "Age"},
		kindDevServer:      {"Ready", "Reason", "URL", "Restarts", "Runtime", "Session", "Host", "Node", "PID", "Age"},
		kindLanguageServer: {"Ready", "Reason", "Language", "Server", "Clients", "Restarts", "Endpoint", "Runtime", "Session", "Host", "Node", "PID", "Age"},
	}
	ownFields := map[string][]string{
		kindInstance:       {".spec.runtime.type", ".spec.session", ".spec.state"},
		kindDevServer:      {".spec.instanceRef.name", ".spec.runtime.type", ".spec.session", ".spec.state"},
		kindLanguageServer: {".spec.instanceRef.name", ".spec.runtime.type", ".spec.session", ".spec.state"},
	}
	for _, kind := range processKinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			crd := definition(t, kind)
			g.Expect(crd.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
			g.Expect(crd.Spec.Names.Categories).To(ConsistOf("berth"))
			g.Expect(crd.Spec.Names.ShortNames).To(ConsistOf(shortNames[kind]))
			g.Expect(crd.Spec.Versions).To(HaveLen(1))
			version := crd.Spec.Versions[0]
			g.Expect(version.Name).To(Equal("v1alpha1"))
			g.Expect(version.Subresources.Status).NotTo(BeNil(), "status must be a subresource")

			columns := make([]string, 0, len(version.AdditionalPrinterColumns))
			for _, column := range version.AdditionalPrinterColumns {
				columns = append(columns, column.Name)
			}
			g.Expect(columns).To(Equal(ownColumns[kind]))

			fields := make([]string, 0, len(version.SelectableFields))
			for _, field := range version.SelectableFields {
				fields = append(fields, field.JSONPath)
			}
			g.Expect(fields).To(Equal(ownFields[kind]))
		})
	}
}

// TestDefinition_ColumnsAreDescribedAndNarrow checks that each column has a description, that the default table of a kind has at most seven columns in addition
// to the name, and that only wide output has the columns about the place of a process.
func TestDefinition_ColumnsAreDescribedAndNarrow(t *testing.T) {
	wideOnly := []string{"Runtime", "Session", "Host", "Node", "PID"}
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			narrow := 0
			for _, column := range definition(t, kind).Spec.Versions[0].AdditionalPrinterColumns {
				g.Expect(column.Description).NotTo(BeEmpty(), "the column %s has no description", column.Name)
				if slices.Contains(wideOnly, column.Name) {
					g.Expect(column.Priority).To(Equal(int32(1)), "the column %s makes the default table too wide", column.Name)
				}
				if column.Priority == 0 {
					narrow++
				}
			}
			g.Expect(narrow).To(BeNumerically("<=", 7), "the default table is too wide")
		})
	}
}

// TestSchema_FollowsConventions checks the conventions for the schema of every kind, for example that fields have bounds and descriptions, and that lists have
// a merge strategy.
func TestSchema_FollowsConventions(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			root := *definition(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema
			for _, part := range []string{"spec", "status"} {
				walk(root.Properties[part], part, func(path string, schema schemaProps) {
					checkConventions(g, path, schema)
				})
			}
			g.Expect(root.Required).To(ContainElement("spec"))
		})
	}
}

// opaqueFields are the parts of a spec that only a language server or the Pod API interprets.
var opaqueFields = map[string]bool{
	"spec.initializationOptions": true, "spec.settings": true, "spec.health.canary.params": true,
	"runtime.pod.volumes[]": true, "runtime.pod.volumeMounts[]": true, "runtime.pod.tolerations[]": true, "runtime.pod.template": true,
	"runtime.pod.volumeClaimTemplates[].spec": true,
}

// mapFields are the only fields that may be maps. Labels, annotations, resources and similar fields are maps everywhere in Kubernetes.
var mapFields = map[string]bool{
	"spec.template.labels": true, "spec.template.annotations": true, "spec.sources[].docker.matchLabels": true,
	"runtime.pod.nodeSelector": true, "runtime.pod.resources.limits": true, "runtime.pod.resources.requests": true,
}

// fieldKey returns the key of the field at path in opaqueFields and mapFields. These tables contain each field of a Pod runtime only once, because the fields
// are the same in every kind.
func fieldKey(path string) string {
	if at := strings.Index(path, "runtime.pod."); at >= 0 {
		return path[at:]
	}
	return path
}

func checkConventions(g *WithT, path string, schema schemaProps) {
	switch schema.Type {
	case "boolean":
		g.Expect(path).To(BeEmpty(), "a boolean cannot get a third value: use a string enum")
	case "string":
		bounded := schema.MaxLength != nil || len(schema.Enum) > 0 || schema.Format == "date-time"
		g.Expect(bounded).To(BeTrue(), "%s: a string without a bound", path)
	case "array":
		g.Expect(schema.MaxItems).NotTo(BeNil(), "%s: a list without a bound", path)
		g.Expect(schema.XListType).NotTo(BeNil(), "%s: a list without x-kubernetes-list-type", path)
	case "integer":
		counted := strings.HasPrefix(path, "status")
		g.Expect(counted || schema.Minimum != nil && schema.Maximum != nil).To(BeTrue(), "%s: a number without a bound", path)
	case "object":
		g.Expect(schema.AdditionalProperties == nil || mapFields[fieldKey(path)]).To(BeTrue(), "%s: a free map", path)
		if opaqueFields[fieldKey(path)] || mapFields[fieldKey(path)] {
			g.Expect(schema.MaxProperties).NotTo(BeNil(), "%s: an object without a bound", path)
		} else {
			g.Expect(schema.XPreserveUnknownFields).To(BeNil(), "%s: keeps unknown fields", path)
		}
	case "number":
		g.Expect(path).To(BeEmpty(), "clients may decode a fraction differently: use an integer")
	}
	for _, rule := range schema.XValidations {
		g.Expect(rule.Message).NotTo(BeEmpty(), "%s: a rule without a message: %s", path, rule.Rule)
	}
	if path != "spec" && path != "status" && !strings.HasSuffix(path, "[]") {
		g.Expect(schema.Description).NotTo(BeEmpty(), "%s: no description", path)
	}
}
