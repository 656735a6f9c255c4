// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

func TestRunsTellOnlyWhatWentWrong(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	wrong := lifecycle.Event{Warning: true, Reason: v1alpha1.ReasonRuntimeUnavailable, Message: "no more processes"}
	step := &lifecycle.Step{Events: []lifecycle.Event{{Reason: v1alpha1.ReasonStarting, Message: "Starting incarnation 1."}, wrong}}
	New(nil, nil, nil).Conclude(&v1alpha1.StrategyRun{}, &v1alpha1.StrategyRun{}, step, now)
	g.Expect(step.Events).To(ConsistOf(wrong))
}
