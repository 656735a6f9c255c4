// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

const generated = `          status:
            properties:
              conditions:
                items:
                  properties:
                    type:
                      type: string
                    nested:
                      type: object
                  type: object
                maxItems: 32
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
              names:
                items:
                  type: object
                type: array
                x-kubernetes-list-map-keys:
                - name
                x-kubernetes-list-type: map
            type: object
`

const wanted = `          status:
            properties:
              conditions:
                items:
                  properties:
                    type:
                      type: string
                    nested:
                      type: object
                  type: object
                  x-kubernetes-map-type: atomic
                maxItems: 32
                type: array
                x-kubernetes-list-map-keys:
                - type
                x-kubernetes-list-type: map
              names:
                items:
                  type: object
                type: array
                x-kubernetes-list-map-keys:
                - name
                x-kubernetes-list-type: map
            type: object
`

func TestAtomicConditions_ChangesOnlyConditions(t *testing.T) {
	g := NewWithT(t)
	once := atomicConditions([]byte(generated))
	g.Expect(string(once)).To(Equal(wanted))
	g.Expect(string(atomicConditions(once))).To(Equal(wanted), "a second time changes nothing")
}

const generatedValues = `              failureTimes:
                items:
                  format: date-time
                  type: string
                type: array
              lastTransitionTime:
                format: date-time
                type: string
              memory:
                pattern: ^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$
                x-kubernetes-int-or-string: true
              name:
                pattern: ^a$
`

func TestDecodableValues_ChangesOnlyTimesAndQuantities(t *testing.T) {
	g := NewWithT(t)
	once := string(decodableValues([]byte(generatedValues)))
	g.Expect(string(decodableValues([]byte(once)))).To(Equal(once), "a second time changes nothing")
	g.Expect(once).To(ContainSubstring("                  format: date-time\n                  " + microTime + "\n                  type: string\n"))
	g.Expect(once).To(ContainSubstring("                format: date-time\n                " + secondsTime + "\n                type: string\n"))
	g.Expect(once).To(ContainSubstring("                " + quantity + "\n                x-kubernetes-int-or-string"))
	g.Expect(once).To(ContainSubstring("                pattern: ^a$\n"))
}
