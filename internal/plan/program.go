// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// fingerprintBytes is long enough to avoid collisions between the programs of one namespace.
const fingerprintBytes = 16

// Program returns the fingerprint of the command, working directory, environment and runtime of a strategy. It excludes the timeout, the breaker and the
// retention, because a user may change these during a plan, for example to reset a breaker.
func Program(strategy *v1alpha1.Strategy) string {
	// The value contains only texts and numbers, so Marshal cannot fail.
	text, _ := json.Marshal(struct {
		Command []string
		Dir     string
		Env     []v1alpha1.EnvVar
		EnvFrom []v1alpha1.EnvFromSource `json:",omitempty"`
		Runtime *v1alpha1.RuntimeSpec
	}{strategy.Spec.Process.Command, strategy.Spec.Process.WorkingDir, strategy.Spec.Process.Env, strategy.Spec.Process.EnvFrom, strategy.Spec.Runtime})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:fingerprintBytes])
}
