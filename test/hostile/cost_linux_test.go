// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// TestCELRules_StayWithinCostBudget checks that CEL rules never exceed the cost limit of the API server for an object that the schema allows. It sends objects
// in which one field has an extreme value, for each field and each extreme value. Then it sends objects in which all fields have their largest values; see
// checkLargestObject.
func TestCELRules_StayWithinCostBudget(t *testing.T) {
	w := newPlane(t)
	g, err := newGenerator(root, 1)
	w.must(err, "read the schemas")
	g.legal = true
	for _, kind := range g.names {
		accepted, sent := 0, 0
		for _, at := range g.fields[kind] {
			size := totalBytes
			for i, value := range g.extremes(at.schema, maxUnboundedDepth, &size) {
				o := &unstructured.Unstructured{Object: map[string]any{"spec": minimalSpec(kind)}}
				o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
				o.SetNamespace(hostileNamespace)
				o.SetName(fmt.Sprintf("cost-%d", i))
				setField(o.Object["spec"], at.path, value)
				sent++
				err := w.api.Create(t.Context(), o, client.DryRunAll)
				switch {
				case err == nil:
					accepted++
				case exceedsCostBudget(err.Error()):
					t.Errorf("%s spec.%s: the rules cost too much for a legal value: %.500s", kind, strings.Join(at.path, "."), err)
				}
			}
		}
		t.Logf("%s: %d of %d objects accepted", kind, accepted, sent)
		if accepted == 0 {
			t.Errorf("%s: no object was accepted", kind)
		}
		w.checkLargestObject(g, kind)
	}
}

// checkLargestObject sends an object of a kind in which all fields have their largest values, because the API server has one cost budget for all rules of an
// object. The API server refuses such an object if some fields exclude each other. Therefore checkLargestObject also builds the largest object that the API
// server accepts, stores it, and updates it, because transition rules are evaluated only on updates.
func (w *world) checkLargestObject(g *generator, kind string) {
	w.Helper()
	scale := int64(1)
	spec := func(fill string) map[string]any {
		return g.largest(g.specs[kind], scale, fill).(map[string]any) //nolint:forcetypeassert // the schema of a spec is an object
	}
	for sizeOf(w.T, spec("a")) > totalBytes {
		scale *= 2
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec("a")}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	o.SetNamespace(hostileNamespace)
	o.SetName("cost-whole")
	w.checkWithinBudget(kind, "create with all fields", w.api.Create(w.Context(), o.DeepCopy(), client.DryRunAll))

	o.Object["spec"] = minimalSpec(kind)
	w.enlargeFields(o, g.specs[kind], scale, nil)
	stored := o.DeepCopy()
	w.must(w.api.Create(w.Context(), stored), "create the largest "+kind)
	size := sizeOf(w.T, stored.Object["spec"])
	for name, changed := range map[string]any{"update without a change": o.Object["spec"], "update of all texts": replaceFill(o.Object["spec"]), "update with all fields": spec("b")} {
		update := stored.DeepCopy()
		update.Object["spec"] = runtime.DeepCopyJSONValue(changed)
		update.SetAnnotations(map[string]string{"changed": "true"})
		w.checkWithinBudget(kind, name, w.api.Update(w.Context(), update, client.DryRunAll))
	}
	w.must(client.IgnoreNotFound(w.api.Delete(w.Context(), stored)), "delete the largest "+kind)
	w.Logf("%s: sizes divided by %d, the largest accepted spec has %d KiB", kind, scale, size>>10)
}

// checkWithinBudget checks that the API server evaluated the rules within their cost budget. The rules may still refuse the object.
func (w *world) checkWithinBudget(kind, doing string, err error) {
	w.Helper()
	switch {
	case err == nil:
	case exceedsCostBudget(err.Error()):
		w.Errorf("%s, %s: the rules cost too much for legal values: %.500s", kind, doing, err)
	case strings.Contains(err.Error(), "rules were not checked") || !apierrors.IsInvalid(err):
		w.Errorf("%s, %s: the rules were not evaluated: %.1000s", kind, doing, err)
	}
}

// enlargeFields sets each field of the schema to its largest value if the API server accepts the object with this value. Otherwise it tries the same with the
// nested fields of this field.
func (w *world) enlargeFields(o *unstructured.Unstructured, s schema, scale int64, path []string) {
	w.Helper()
	g := &generator{legal: true}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		at := append(slices.Clone(path), name)
		value := g.largest(s.Properties[name], scale, "a")
		if value == nil {
			continue
		}
		before := runtime.DeepCopyJSONValue(o.Object["spec"])
		setField(o.Object["spec"], at, value)
		err := w.api.Create(w.Context(), o.DeepCopy(), client.DryRunAll)
		if err == nil {
			continue
		}
		o.Object["spec"] = before
		if exceedsCostBudget(err.Error()) {
			w.Errorf("%s spec.%s: the rules cost too much in combination with other legal values: %.500s", o.GetKind(), strings.Join(at, "."), err)
		}
		w.enlargeFields(o, s.Properties[name], scale, at)
	}
}

func sizeOf(t *testing.T, value any) int {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// replaceFill returns a copy of value in which the fill characters of all texts are replaced.
func replaceFill(value any) any {
	switch value := value.(type) {
	case map[string]any:
		changed := map[string]any{}
		for name, field := range value {
			changed[name] = replaceFill(field)
		}
		return changed
	case []any:
		changed := make([]any, len(value))
		for i, item := range value {
			changed[i] = replaceFill(item)
		}
		return changed
	case string:
		return strings.ReplaceAll(value, "aaa", "bbb")
	}
	return value
}

// largest returns the largest value that a schema allows, except that the lengths of texts, lists and maps are divided by scale. It fills texts with fill.
func (g *generator) largest(s schema, scale int64, fill string) any {
	length := func(most, least *int64) int64 {
		return max(ptr.Deref(most, maxUnboundedLength)/scale, ptr.Deref(least, 0), 1)
	}
	switch {
	case len(s.Enum) > 0:
		return strings.Trim(string(s.Enum[len(s.Enum)-1].Raw), `"`)
	case s.XIntOrString:
		return "http"
	case ptr.Deref(s.XPreserveUnknownFields, false) && len(s.Properties) == 0:
		return map[string]any{"metadata": map[string]any{}}
	}
	switch s.Type {
	case "string":
		longest := int(length(s.MaxLength, s.MinLength))
		for _, text := range append([]string{
			strings.Repeat(fill, longest), "/" + strings.Repeat(fill, longest-1), "http://" + strings.Repeat(fill, max(longest-7, 1)),
			strings.Repeat(fill, min(longest, 63)), strings.Repeat(strings.ToUpper(fill), longest),
		}, fixedTexts...) {
			if g.allowsText(s, text) {
				return text
			}
		}
	case "integer", "number":
		return int64(ptr.Deref(s.Maximum, math.MaxInt32))
	case "boolean":
		return true
	case "array":
		list := []any{}
		for i := range length(s.MaxItems, s.MinItems) {
			value := g.largest(*s.Items.Schema, scale, fill)
			if item, ok := value.(map[string]any); ok {
				for _, key := range s.XListMapKeys {
					item[key] = fmt.Sprintf("item-%d", i)
				}
			}
			if text, ok := value.(string); ok && ptr.Deref(s.XListType, "") == "set" {
				digits := fmt.Sprint(i)
				value = text[:max(len(text)-len(digits), 0)] + digits
			}
			if value == nil {
				break
			}
			list = append(list, value)
		}
		return list
	case "object":
		full := map[string]any{}
		for name, field := range s.Properties {
			if value := g.largest(field, scale, fill); value != nil {
				full[name] = value
			}
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			for i := range length(s.MaxProperties, s.MinProperties) {
				full[fmt.Sprintf("key-%d", i)] = g.largest(*s.AdditionalProperties.Schema, scale, fill)
			}
		}
		return full
	}
	return nil
}
