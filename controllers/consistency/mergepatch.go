// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package consistency

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// null in a merge patch removes a field.
var null = json.RawMessage("null")

// statusPatch returns the JSON merge patch that changes the status of before to the status of after, or nil if they are equal. It ignores differences outside
// the status. Applying the patch fails with a conflict if the stored object no longer has the resource version of before.
//
// controller-runtime creates the same patch from two whole objects decoded into maps, which takes a considerable part of a millisecond. That delay would
// affect every start, because a process is started only after the status is written.
func statusPatch(before, after client.Object) (client.Patch, error) {
	version := before.GetResourceVersion()
	if version == "" {
		return nil, fmt.Errorf("%s %s was never stored: its status cannot be patched", before.GetNamespace(), before.GetName())
	}
	old, err := statusOf(before)
	if err != nil {
		return nil, err
	}
	wanted, err := statusOf(after)
	if err != nil {
		return nil, err
	}
	changes, err := difference(old, wanted)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": version}, "status": changes})
	if err != nil {
		return nil, fmt.Errorf("encode a patch of the status: %w", err)
	}
	return client.RawPatch(types.MergePatchType, data), nil
}

// statusOf returns the fields of the status as JSON.
func statusOf(object client.Object) (map[string]json.RawMessage, error) {
	status := reflect.Indirect(reflect.ValueOf(object)).FieldByName("Status")
	if !status.IsValid() {
		return nil, fmt.Errorf("%T has no status", object)
	}
	text, err := json.Marshal(status.Addr().Interface())
	if err != nil {
		return nil, fmt.Errorf("encode the status of %T: %w", object, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("decode the status of %T: %w", object, err)
	}
	return fields, nil
}

// difference returns the changed fields. Objects are compared field by field; any other value is sent as a whole. Equal values have equal texts, because
// the same encoder wrote both.
func difference(before, after map[string]json.RawMessage) (map[string]any, error) {
	changes := map[string]any{}
	for name, value := range after {
		old, had := before[name]
		switch {
		case had && bytes.Equal(old, value):
		case had && old[0] == '{' && value[0] == '{':
			var inner [2]map[string]json.RawMessage
			for i, text := range []json.RawMessage{old, value} {
				if err := json.Unmarshal(text, &inner[i]); err != nil {
					return nil, fmt.Errorf("compare %s: %w", name, err)
				}
			}
			nested, err := difference(inner[0], inner[1])
			if err != nil {
				return nil, err
			}
			changes[name] = nested
		default:
			changes[name] = value
		}
	}
	for name := range before {
		if _, still := after[name]; !still {
			changes[name] = null
		}
	}
	return changes, nil
}
