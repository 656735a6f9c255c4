// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Retries stay frequent however long the API server was unavailable, so that its return is noticed quickly.
func TestRetries_StayFrequent(t *testing.T) {
	g := NewWithT(t)
	limiter, object := Retries(), ctrl.Request{}
	var last time.Duration
	for range 100 {
		last = limiter.When(object)
	}
	g.Expect(last).To(BeNumerically("<=", 5*time.Second))
	limiter.Forget(object)
	g.Expect(limiter.When(object)).To(BeNumerically("<=", 10*time.Millisecond))
}
