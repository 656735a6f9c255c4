// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// fingerprintBytes is enough that no two programs of one namespace have the same by chance.
const fingerprintBytes = 16

// Program is the fingerprint of what runs of a strategy execute, and where. How long they may take, when the breaker opens and what is kept are
// not in it: these may change under a plan, and have to when a breaker is reset.
func Program(strategy *v1alpha1.Strategy) string {
	// Texts and numbers alone: that cannot fail.
	text, _ := json.Marshal(struct {
		Command []string
		Dir     string
		Env     []v1alpha1.EnvVar
		Runtime *v1alpha1.RuntimeSpec
	}{strategy.Spec.Process.Command, strategy.Spec.Process.WorkingDir, strategy.Spec.Process.Env, strategy.Spec.Runtime})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:fingerprintBytes])
}
