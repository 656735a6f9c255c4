// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestExpand_ReplacesKnownReferences(t *testing.T) {
	values := map[string]string{"A": "1", "B": "$(A)", "EMPTY": "", "X-Y.Z": "dots"}
	lookup := func(name string) (string, bool) {
		value, known := values[name]
		return value, known
	}
	for text, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"$(A)":            "1",
		"x$(A)y$(A)":      "x1y1",
		"$(B)":            "$(A)",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$1",
		"$$$$(A)":         "$$(A)",
		"$(NOBODY)":       "$(NOBODY)",
		"$(EMPTY)|":       "|",
		"$(X-Y.Z)":        "dots",
		"$":               "$",
		"$$":              "$",
		"a$":              "a$",
		"$A ${A} $1":      "$A ${A} $1",
		"$(A":             "$(A",
		"$(":              "$(",
		"$()":             "$()",
		"$(A)$":           "1$",
		"$((A))":          "$((A))",
		"$(NOBODY)$(A)":   "$(NOBODY)1",
		"--port=$(A) $$5": "--port=1 $5",
		"ü$(A)ü":          "ü1ü",
	} {
		if got := expand(text, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzExpandKeepsTextWithoutReferences(f *testing.F) {
	f.Add("a$b(c)d")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "$$") {
			return
		}
		if got := expand(text, func(string) (string, bool) { return "", false }); got != text {
			t.Errorf("expand(%q) = %q", text, got)
		}
	})
}

func TestExpandEnvironment_ReferencesEarlierVariables(t *testing.T) {
	variables := []variable{
		{name: "BASE", value: "/srv"},
		{name: "URL", value: "http://localhost:$(PORT)$(BASE)"},
		{name: "LATER", value: "$(AFTER)"},
		{name: "AFTER", value: "x"},
		{name: "TOKEN", value: "s3cret$(BASE)", literal: true, secret: true},
		{name: "HEADER", value: "Bearer $(TOKEN)"},
		{name: "PORT", value: "1"},
	}
	env := expandEnvironment(variables, map[string]string{"PORT": "8080", "BROWSER": "none"})
	want := []string{
		"BROWSER=none", "PORT=8080", "BASE=/srv", "URL=http://localhost:8080/srv", "LATER=$(AFTER)", "AFTER=x",
		"TOKEN=s3cret$(BASE)", "HEADER=Bearer s3cret$(BASE)",
	}
	if diff := cmp.Diff(want, env.list); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestCommand_ContainsNoSecret(t *testing.T) {
	g := NewWithT(t)
	env := expandEnvironment([]variable{
		{name: "DIR", value: "/srv"},
		{name: "TOKEN", value: "s3cret", literal: true, secret: true},
		{name: "HEADER", value: "Bearer $(TOKEN)"},
	}, map[string]string{"PORT": "8080"})

	argv, blocked := env.command("spec.process.command", []string{"serve", "--port", "$(PORT)", "--dir=$(DIR)", "$$(TOKEN)", "$(OTHER)"})
	g.Expect(blocked).To(BeNil())
	g.Expect(argv).To(Equal([]string{"serve", "--port", "8080", "--dir=/srv", "$(TOKEN)", "$(OTHER)"}))

	for _, word := range []string{"--token=$(TOKEN)", "$(HEADER)"} {
		argv, blocked = env.command("spec.process.command", []string{"serve", word})
		g.Expect(argv).To(BeNil())
		g.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment))
		g.Expect(blocked.Message).To(And(ContainSubstring("command[1]"), Not(ContainSubstring("s3cret"))))
	}
}

// Linux executes no program with a longer variable or argument, so a start would be retried forever. Without a limit, references could also expand to more than
// the memory of the manager.
func TestEnvironment_TooLongBlocksTheStart(t *testing.T) {
	value := func(size int) string { return strings.Repeat("x", size) }
	bomb := []variable{{name: "A", value: value(32768)}}
	for _, name := range []string{"B", "C", "D", "E"} {
		bomb = append(bomb, variable{name: name, value: strings.Repeat("$("+bomb[len(bomb)-1].name+")", 8192)})
	}
	var many []variable
	for i := range 16 {
		many = append(many, variable{name: fmt.Sprintf("V%02d", i), value: value(maxString - len("V00="))})
	}
	for name, row := range map[string]struct {
		variables []variable
		command   []string
		says      string
	}{
		"longest variable":                 {[]variable{{name: "A", value: value(maxString - len("A="))}}, []string{"serve"}, ""},
		"variable too long":                {[]variable{{name: "A", value: value(maxString - len("A=") + 1)}}, []string{"serve"}, "Environment variable A: the variable and its name"},
		"variable from a Secret too long":  {[]variable{{name: "A", value: value(maxString), literal: true, secret: true}}, []string{"serve"}, "Environment variable A"},
		"references multiply":              {bomb, []string{"serve"}, "Environment variable B"},
		"longest argument":                 {[]variable{{name: "A", value: value(maxString / 2)}}, []string{"serve", "$(A)$(A)x"}, ""},
		"argument too long":                {[]variable{{name: "A", value: value(maxString / 2)}}, []string{"serve", "$(A)$(A)xx"}, "command[1] is too long"},
		"many variables":                   {many[:14], []string{"serve"}, ""},
		"too many variables":               {many, []string{"serve"}, "Environment variable V14: this variable and the ones before it"},
		"variables and arguments too long": {many[:14], []string{"serve", "$(V00)", "$(V01)"}, "command[1] is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			env := expandEnvironment(row.variables, map[string]string{"PORT": "8080"})
			argv, blocked := env.command("spec.process.command", row.command)
			if row.says == "" {
				g.Expect(blocked).To(BeNil())
				return
			}
			g.Expect(argv).To(BeNil())
			g.Expect(blocked).NotTo(BeNil())
			g.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment))
			g.Expect(blocked.Message).To(And(ContainSubstring(row.says), Not(ContainSubstring("xxx"))))
		})
	}
}

func TestResolve_ReadsValuesOrBlocks(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Data:       map[string][]byte{"k": []byte("hidden"), "zero": []byte("a\x00b")},
	}
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Data:       map[string]string{"k": "shown"}, BinaryData: map[string][]byte{"b": []byte("bytes")},
	}
	elsewhere := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "elsewhere"}, Data: map[string][]byte{"k": nil}}
	r := &Reconciler{Reader: fakeclient.NewClientBuilder().WithScheme(testScheme()).WithObjects(secret, configMap, elsewhere).Build()}
	fromSecret := func(name, key string) *v1alpha1.EnvVarSource {
		return &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: name, Key: key}}
	}
	fromConfigMap := func(name, key string) *v1alpha1.EnvVarSource {
		return &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeyRef{Name: name, Key: key}}
	}
	optional := func(from *v1alpha1.EnvVarSource) *v1alpha1.EnvVarSource {
		from.SecretKeyRef.Presence = v1alpha1.PresenceOptional
		return from
	}
	tests := map[string]struct {
		env         v1alpha1.EnvVar
		want        variable
		wantMissing string
	}{
		"value":               {env: v1alpha1.EnvVar{Name: "A", Value: "$(B)"}, want: variable{name: "A", value: "$(B)"}},
		"secret":              {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromSecret("s", "k")}, want: variable{name: "A", value: "hidden", literal: true, secret: true}},
		"config map":          {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromConfigMap("c", "k")}, want: variable{name: "A", value: "shown", literal: true}},
		"binary data":         {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromConfigMap("c", "b")}, want: variable{name: "A", value: "bytes", literal: true}},
		"no secret":           {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromSecret("none", "k")}, wantMissing: "Environment variable A: Secret none does not exist in namespace ns; create it."},
		"no key":              {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromSecret("s", "none")}, wantMissing: "Environment variable A: Secret s has no key none; add it."},
		"no config map":       {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromConfigMap("none", "k")}, wantMissing: "ConfigMap none does not exist"},
		"optional, no secret": {env: v1alpha1.EnvVar{Name: "A", ValueFrom: optional(fromSecret("none", "k"))}, want: variable{unset: true}},
		"optional, no key":    {env: v1alpha1.EnvVar{Name: "A", ValueFrom: optional(fromSecret("s", "none"))}, want: variable{unset: true}},
		"optional, there":     {env: v1alpha1.EnvVar{Name: "A", ValueFrom: optional(fromSecret("s", "k"))}, want: variable{name: "A", value: "hidden", literal: true, secret: true}},
		"another namespace":   {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromSecret("elsewhere", "k")}, wantMissing: "Secret elsewhere does not exist"},
		"zero byte":           {env: v1alpha1.EnvVar{Name: "A", ValueFrom: fromSecret("s", "zero")}, wantMissing: "zero byte"},
		"neither":             {env: v1alpha1.EnvVar{Name: "A", ValueFrom: &v1alpha1.EnvVarSource{}}, wantMissing: "must name a Secret or a ConfigMap"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "i"}}
			object.Spec.Process.Env = []v1alpha1.EnvVar{tc.env}
			variables, blocked, err := r.resolve(t.Context(), &scope{object: object})
			g.Expect(err).NotTo(HaveOccurred())
			if tc.wantMissing != "" {
				g.Expect(blocked).NotTo(BeNil())
				g.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment))
				g.Expect(blocked.Message).To(ContainSubstring(tc.wantMissing))
				g.Expect(blocked.Retry).To(Equal(environmentRetry))
				return
			}
			g.Expect(blocked).To(BeNil())
			if tc.want.unset {
				g.Expect(variables).To(BeEmpty())
				return
			}
			g.Expect(variables).To(Equal([]variable{tc.want}))
		})
	}
}

func TestResolve_ReadsAllKeysOfASource(t *testing.T) {
	object := func(name string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: data}
	}
	many := map[string]string{}
	for i := range maxSourceVariables + 1 {
		many[fmt.Sprintf("K%d", i)] = ""
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"TOKEN": []byte("hidden"), "B": []byte("of the Secret")}}
	r := &Reconciler{Reader: fakeclient.NewClientBuilder().WithScheme(testScheme()).WithObjects(
		secret, object("c", map[string]string{"A": "$(X)", "B": "of the ConfigMap"}), object("number", map[string]string{"1": ""}),
		object("zero", map[string]string{"A": "a\x00b"}), object("many", many)).Build()}
	from := func(prefix, configMap, secret string) v1alpha1.EnvFromSource {
		source := v1alpha1.EnvFromSource{Prefix: prefix}
		if configMap != "" {
			source.ConfigMapRef = &v1alpha1.EnvFromRef{Name: configMap}
		} else if secret != "" {
			source.SecretRef = &v1alpha1.EnvFromRef{Name: secret}
		}
		return source
	}
	resolve := func(g *WithT, env []v1alpha1.EnvVar, sources ...v1alpha1.EnvFromSource) ([]variable, string) {
		instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "i"}}
		instance.Spec.Process.Env, instance.Spec.Process.EnvFrom = env, sources
		variables, blocked, err := r.resolve(t.Context(), &scope{object: instance})
		g.Expect(err).NotTo(HaveOccurred())
		if blocked != nil {
			g.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment))
			return nil, blocked.Message
		}
		return variables, ""
	}
	g := NewWithT(t)
	variables, _ := resolve(g, []v1alpha1.EnvVar{{Name: "A", Value: "of env"}, {Name: "URL", Value: "$(X_A)"}}, from("", "c", ""), from("X_", "c", ""), from("", "", "s"))
	g.Expect(variables).To(Equal([]variable{
		{name: "X_A", value: "$(X)", literal: true}, {name: "X_B", value: "of the ConfigMap", literal: true},
		{name: "B", value: "of the Secret", literal: true, secret: true}, {name: "TOKEN", value: "hidden", literal: true, secret: true},
		{name: "A", value: "of env"}, {name: "URL", value: "$(X_A)"},
	}), "later sources and env override earlier ones")
	optional := from("", "none", "")
	optional.ConfigMapRef.Presence = v1alpha1.PresenceOptional
	variables, message := resolve(g, nil, optional)
	g.Expect(variables).To(BeEmpty())
	g.Expect(message).To(BeEmpty())
	for name, test := range map[string]struct {
		source  v1alpha1.EnvFromSource
		message string
	}{
		"missing":      {from("", "none", ""), "spec.process.envFrom: ConfigMap none does not exist in namespace ns; create it."},
		"neither":      {from("A", "", ""), "each source must name a Secret or a ConfigMap"},
		"invalid name": {from("", "number", ""), "the key 1 of ConfigMap number cannot become an environment variable"},
		"zero byte":    {from("", "zero", ""), "the value of the key A of ConfigMap zero contains a zero byte"},
		"too many":     {from("", "many", ""), "more than 1000 keys"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, message := resolve(g, nil, test.source)
			g.Expect(message).To(ContainSubstring(test.message))
		})
	}
}
