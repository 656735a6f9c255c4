// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
)

type schema = apiextensionsv1.JSONSchemaProps

const (
	// maxUnboundedLength is the maximum length of generated texts and lists whose schema has no bound.
	maxUnboundedLength = 4096
	// maxUnboundedDepth is the maximum depth of generated values whose schema has no bound.
	maxUnboundedDepth = 40
	// totalBytes is the approximate maximum size of a generated object. It is smaller than the limit of etcd, 1.5 MiB.
	totalBytes = 1 << 20
)

// kinds are the kinds of Berth, each with the smallest valid spec.
var kinds = map[string]string{
	"Instance":          `{process: {command: [sleep, infinity]}}`,
	"DevServer":         `{process: {command: [sleep, infinity]}}`,
	"LanguageServer":    `{language: go, process: {command: [sleep, infinity]}, workspace: {folders: [/tmp]}}`,
	"Action":            `{strategize: {strategies: [{name: lint}]}}`,
	"InstanceDiscovery": `{sources: [{name: all, type: Tmux}]}`,
	"Plan":              `{actionRef: {name: release}}`,
	"Strategy":          `{process: {command: ["false"]}}`,
	"StrategyRun":       `{strategyRef: {name: lint}}`,
}

// specField is one field of a spec: its path and its schema. The path element [] stands for an item of a list.
type specField struct {
	path   []string
	schema schema
}

// generator creates objects with extreme values. With the same seed, the same sequence of calls creates the same objects.
type generator struct {
	random *rand.Rand
	legal  bool // create only values that the schema allows
	names  []string
	specs  map[string]schema
	fields map[string][]specField
}

func newGenerator(root string, seed uint64) (*generator, error) {
	g := &generator{
		random: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // reproducible by design
		names:  slices.Sorted(maps.Keys(kinds)), specs: map[string]schema{}, fields: map[string][]specField{},
	}
	for _, kind := range g.names {
		spec, err := specOf(root, kind)
		if err != nil {
			return nil, err
		}
		g.specs[kind] = spec
		for name, field := range spec.Properties {
			g.fields[kind] = walk(field, []string{name}, g.fields[kind])
		}
		slices.SortFunc(g.fields[kind], func(a, b specField) int { return slices.Compare(a.path, b.path) })
	}
	return g, nil
}

// specOf reads the schema of spec from the generated CustomResourceDefinition.
func specOf(root, kind string) (schema, error) {
	plural := strings.ToLower(kind) + "s"
	if stem, ok := strings.CutSuffix(plural, "ys"); ok {
		plural = stem + "ies"
	}
	path := filepath.Join(root, "config", "crd", "bases", "berth.dev_"+plural+".yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return schema{}, err
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, definition); err != nil {
		return schema{}, fmt.Errorf("%s: %w", path, err)
	}
	return definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], nil
}

func walk(s schema, path []string, found []specField) []specField {
	found = append(found, specField{slices.Clone(path), s})
	if s.Items != nil && s.Items.Schema != nil {
		return walk(*s.Items.Schema, append(path, "[]"), found)
	}
	for name, field := range s.Properties {
		found = walk(field, append(slices.Clone(path), name), found)
	}
	return found
}

// object returns an object whose spec has extreme values in some fields.
func (g *generator) object(namespace string, number int) *unstructured.Unstructured {
	kind := g.names[number%len(g.names)]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": minimalSpec(kind)}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	o.SetNamespace(namespace)
	o.SetName(fmt.Sprintf("hostile-%d", number))
	g.setExtremeValues(o)
	return o
}

// setExtremeValues puts extreme values into one to three fields. In most objects the schema allows these values, so that they reach the manager.
func (g *generator) setExtremeValues(o *unstructured.Unstructured) {
	fields := g.fields[o.GetKind()]
	g.legal = g.random.IntN(8) > 0
	for range 1 + g.random.IntN(3) {
		at := fields[g.random.IntN(len(fields))]
		size := totalBytes
		values := g.extremes(at.schema, maxUnboundedDepth, &size)
		if len(values) > 0 {
			setField(o.Object["spec"], at.path, values[g.random.IntN(len(values))])
		}
	}
}

func minimalSpec(kind string) map[string]any {
	spec := map[string]any{}
	if err := yaml.Unmarshal([]byte(kinds[kind]), &spec); err != nil {
		panic(err)
	}
	return runtime.DeepCopyJSON(jsonNumbers(spec))
}

// jsonNumbers converts numbers from YAML to the types that unstructured objects use.
func jsonNumbers(spec map[string]any) map[string]any {
	for key, value := range spec {
		if number, ok := value.(int); ok {
			spec[key] = int64(number)
		}
	}
	return spec
}

// setField sets the field at path in content to value, or appends value to a list if the path ends with []. It creates missing parents.
func setField(content any, path []string, value any) {
	object, ok := content.(map[string]any)
	if !ok {
		return
	}
	name := path[0]
	if len(path) == 1 {
		object[name] = value
		return
	}
	if path[1] != "[]" {
		if _, ok := object[name].(map[string]any); !ok {
			object[name] = map[string]any{}
		}
		setField(object[name], path[1:], value)
		return
	}
	list, _ := object[name].([]any)
	if len(path) == 2 {
		object[name] = append(list, value)
		return
	}
	if len(list) == 0 {
		list = []any{map[string]any{}}
	}
	object[name] = list
	setField(list[0], path[2:], value)
}

// extremes returns values of a field that are likely to reveal errors: the minimum, the maximum, an empty value and unexpected values. The API server is
// expected to refuse many of them.
func (g *generator) extremes(s schema, depth int, size *int) []any {
	switch {
	case depth == 0 || *size <= 0:
		return nil
	case len(s.Enum) > 0:
		var values []any
		for _, value := range s.Enum {
			values = append(values, strings.Trim(string(value.Raw), `"`))
		}
		if !g.legal {
			values = append(values, "Bogus")
		}
		return values
	case s.XIntOrString:
		return []any{int64(1), int64(math.MaxInt32), "http", strings.Repeat("9", 64)}
	case ptr.Deref(s.XPreserveUnknownFields, false) && len(s.Properties) == 0:
		return []any{map[string]any{}, nested(maxUnboundedDepth), map[string]any{"spec": map[string]any{"containers": []any{}}}, map[string]any{"blob": strings.Repeat("b", 256<<10)}}
	}
	switch s.Type {
	case "string":
		return g.texts(s, size)
	case "integer", "number":
		values := []any{int64(ptr.Deref(s.Minimum, math.MinInt32)), int64(ptr.Deref(s.Maximum, math.MaxInt32))}
		if !g.legal {
			values = append(values, int64(-1), int64(math.MinInt64), int64(math.MaxInt64))
		}
		return values
	case "boolean":
		return []any{true, false}
	case "array":
		return g.lists(s, depth, size)
	case "object":
		return g.objects(s, depth, size)
	}
	return []any{nil}
}

// fixedTexts are fixed texts, some of them hostile. Most patterns of the schemas match at least one of them.
var fixedTexts = []string{
	"", "a", "1", "a-b", "/", "/tmp", "10.0.0.1", "http://127.0.0.1:1/", "\x1b]0;OWNED\a\n\x7f", "\u202egnirts\u2066", "\x00", "../../../../etc/shadow", "-rf", "$(id)", "%s%n",
	"(?s)(?:.?.?){1000}", "((((((((",
}

func (g *generator) texts(s schema, size *int) []any {
	longest := min(int(ptr.Deref(s.MaxLength, maxUnboundedLength)), max(*size, 1))
	*size -= longest
	tries := append([]string{
		strings.Repeat("a", longest), "/" + strings.Repeat("a", max(longest-1, 0)), "http://" + strings.Repeat("a", max(longest-7, 0)), strings.Repeat("é", longest),
	}, fixedTexts...)
	var values []any
	for _, text := range tries {
		if !g.legal || g.allowsText(s, text) {
			values = append(values, text)
		}
	}
	return values
}

func (g *generator) allowsText(s schema, text string) bool {
	length := int64(len([]rune(text)))
	if length > ptr.Deref(s.MaxLength, math.MaxInt64) || length < ptr.Deref(s.MinLength, 0) {
		return false
	}
	matches, err := regexp.MatchString(s.Pattern, text)
	return err == nil && matches
}

func (g *generator) lists(s schema, depth int, size *int) []any {
	values := []any{[]any{}}
	if g.legal && ptr.Deref(s.MinItems, 0) > 0 {
		values = nil
	}
	if s.Items == nil || s.Items.Schema == nil {
		return values
	}
	for _, length := range []int64{1, ptr.Deref(s.MaxItems, maxUnboundedLength)} {
		list := make([]any, 0, length)
		for i := range length {
			value := g.oneValue(*s.Items.Schema, depth-1, size)
			if item, ok := value.(map[string]any); ok {
				for _, key := range s.XListMapKeys {
					item[key] = fmt.Sprintf("item-%d", i)
				}
			}
			if _, ok := value.(string); ok && s.XListType != nil && *s.XListType == "set" {
				value = fmt.Sprintf("item-%d", i)
			}
			if value == nil {
				break
			}
			list = append(list, value)
		}
		values = append(values, list)
	}
	return values
}

func (g *generator) objects(s schema, depth int, size *int) []any {
	var values []any
	if !g.legal || len(s.Required) == 0 {
		values = append(values, map[string]any{})
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		full := map[string]any{}
		for i := range ptr.Deref(s.MaxProperties, maxUnboundedLength) {
			if value := g.oneValue(*s.AdditionalProperties.Schema, depth-1, size); value != nil {
				full[fmt.Sprintf("key-%d", i)] = value
			}
		}
		return append(values, full)
	}
	for range 2 {
		full := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if value := g.oneValue(s.Properties[name], depth-1, size); value != nil && (slices.Contains(s.Required, name) || g.random.IntN(3) > 0) {
				full[name] = value
			}
		}
		values = append(values, full)
	}
	return values
}

func (g *generator) oneValue(s schema, depth int, size *int) any {
	values := g.extremes(s, depth, size)
	if len(values) == 0 {
		return nil
	}
	return values[g.random.IntN(len(values))]
}

func nested(levels int) map[string]any {
	object := map[string]any{}
	for range levels {
		object = map[string]any{"n": object}
	}
	return object
}
