// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestFind(t *testing.T) {
	type place struct {
		Text  string
		Index int
	}
	items := [][]string{{"*", "data"}, {"items", "*", "data"}}
	for name, c := range map[string]struct {
		text  string
		paths [][]string
		want  []place
	}{
		"elements of an array": {`[{"data":1}, {"label":"x"}, {"data" : {"data":[2]}}]`, items, []place{{"1", 0}, {`{"data":[2]}`, 2}}},
		"elements in a member": {`{"items":[{"x":[],"data":"a"},{"data":null}],"itemDefaults":{"data":3},"data":4}`, items, []place{{`"a"`, 0}, {"null", 1}, {"3", -1}}},
		"one member":           {`{"resultId":"7","data":[1,2]}`, [][]string{{"resultId"}}, []place{{`"7"`, -1}}},
		"any member":           {`{"related":{"a":{"id":"1"},"b":{"id":"2"}}}`, [][]string{{"related", "*", "id"}}, []place{{`"1"`, -1}, {`"2"`, -1}}},
		"another shape":        {`"items"`, items, nil},
		"null":                 {`null`, items, nil},
		"empty":                {`{"items":[]}`, items, nil},
		"invalid":              {`[{"data":1},`, items, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []place
			for _, found := range Find([]byte(c.text), c.paths...) {
				got = append(got, place{c.text[found.Start:found.End], found.Index})
			}
			NewWithT(t).Expect(got).To(Equal(c.want))
		})
	}
}
