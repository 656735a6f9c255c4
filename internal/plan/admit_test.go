// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// pinWithPattern pins an action whose only argument has this pattern. It returns the reason and the message if the plan is blocked.
func pinWithPattern(pattern, value string) (reason, message string) {
	action := &v1alpha1.Action{}
	action.Name = "release"
	action.Spec.Arguments = []v1alpha1.ActionArgument{{Name: "version", Pattern: pattern}}
	_, blocked := Pin(action, nil, []v1alpha1.RunArgument{{Name: "version", Value: value}})
	if blocked == nil {
		return "", ""
	}
	return blocked.Reason, blocked.Message
}

func TestPin_MatchesArgumentsAgainstPatterns(t *testing.T) {
	attack := `(?s)(?:` + strings.Repeat(`.?`, 119) + `){1000}\x00`
	large := `(?s)(?:.?){1000}`
	for name, tc := range map[string]struct{ pattern, value, reason, message string }{
		"matches":                        {`v[0-9]+`, "v1", "", ""},
		"matches only a part":            {`v[0-9]+`, "v1;rm", v1alpha1.ReasonInvalidArgument, "Argument version must match v[0-9]+."},
		"matches an alternative in full": {`v|v1`, "v1", "", ""},
		"escapes its anchors":            {`)|.*(?:`, "anything", v1alpha1.ReasonInvalidPattern, "The pattern of argument version in action release"},
		"opens a quotation":              {`\Qv1`, "v1", "", ""},
		"is too large":                   {attack, "x", v1alpha1.ReasonInvalidPattern, "2048"},
		"allows a long value":            {`(?s).*`, strings.Repeat("x", 8192), "", ""},
		"is large":                       {large, strings.Repeat("x", 1000), "", ""},
		"is large for a long value":      {large, strings.Repeat("x", 8192), v1alpha1.ReasonInvalidArgument, "Argument version is longer than 20"},
	} {
		reason, message := pinWithPattern(tc.pattern, tc.value)
		if reason != tc.reason || !strings.Contains(message, tc.message) {
			t.Errorf("a pattern that %s: %s %q, want %s %q", name, reason, message, tc.reason, tc.message)
		}
	}
	action := &v1alpha1.Action{Spec: v1alpha1.ActionSpec{Arguments: []v1alpha1.ActionArgument{{Name: "version", Pattern: "("}}}}
	if got := CheckPatterns(action); !strings.Contains(got, "missing closing )") {
		t.Errorf("the command line reports %q", got)
	}
}
