// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mergepatch makes the patches that controllers write a status with. controller-runtime makes the same ones out of two whole objects,
// decoded into maps, which takes a good part of a millisecond; nothing is started before the write, so that everybody waits for it.
package mergepatch

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

// Status gives the JSON merge patch that makes the status of the stored object that of after, and fails with a conflict if what is stored is not
// the version of before any more. It is nil when nothing has to be written. What else is different of the two is not looked at.
func Status(before, after client.Object) (client.Patch, error) {
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

// statusOf gives the fields of the status as they are sent.
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
		return nil, fmt.Errorf("take the status of %T apart: %w", object, err)
	}
	return fields, nil
}

// difference gives what changes: objects are compared field by field, everything else is sent as a whole. Equal values have equal texts, as one
// encoder has written both.
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
