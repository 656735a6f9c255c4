// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var root = filepath.Join("..", "..")

// complete are the values with which the chart creates all objects of config/.
const complete = `metrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}`

func TestKustomizeAndHelmGiveTheSame(t *testing.T) {
	kustomize := kustomized(t, "config/default")
	maps.Copy(kustomize, kustomized(t, "config/prometheus"))
	helm := helmed(t, Namespace, complete)
	kustomize, helm = kustomize.Comparable(), helm.Comparable()
	if len(kustomize) < 30 {
		t.Fatalf("config/default has %d objects", len(kustomize))
	}
	for _, key := range slices.Sorted(maps.Keys(kustomize)) {
		if helm[key] == nil {
			t.Errorf("the chart has no %s", key)
		} else if !reflect.DeepEqual(kustomize[key], helm[key]) {
			t.Errorf("%s differs: the chart has\n%s\nand config/default\n%s", key, text(t, helm[key]), text(t, kustomize[key]))
		}
	}
	for key := range helm {
		if kustomize[key] == nil {
			t.Errorf("config/default has no %s", key)
		}
	}
}

func TestWhatIsBesideTheDefaultIsOff(t *testing.T) {
	if got, want := len(helmed(t, Namespace, "")), len(helmed(t, Namespace, complete)); got != want-3 {
		t.Errorf("%d objects by default, %d with all of monitoring", got, want)
	}
}

// variations are values of the chart, each with a check of the objects that these values change.
var variations = []struct {
	name, values string
	check        func(t *testing.T, objects Objects)
}{
	{"replicas", "replicas: 5", field("Deployment", "berth-manager", 5.0, "spec", "replicas")},
	{"tag", "image: {tag: 9.9.9}", image("berth-dev/berth:9.9.9")},
	{"repository", "image: {repository: local/berth}", image("local/berth:0.1.0")},
	{"digest", "image: {tag: 1, digest: 'sha256:" + strings.Repeat("a", 64) + "'}", nil},
	{"digest wins", "image: {tag: '1', digest: 'sha256:" + strings.Repeat("a", 64) + "'}", image("berth-dev/berth@sha256:" + strings.Repeat("a", 64))},
	{"no policies", "policies: {enabled: false}", without("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap")},
	{"policy of a namespace", `policies: {commands: "gohello\n/opt/*", namespaces: {team-a: {runtimes: Host}}}`, func(t *testing.T, objects Objects) {
		field("ConfigMap", "berth-policy", "gohello\n/opt/*", "data", "commands")(t, objects)
		field("ConfigMap", "berth-policy", "Host", "data", "runtimes.team-a")(t, objects)
		field("ConfigMap", "berth-policy", "Pod", "data", "runtimes")(t, objects)
	}},
	{"no metrics", "metrics: {enabled: false, serviceMonitor: {enabled: true}}", func(t *testing.T, objects Objects) {
		without("Service", "ServiceMonitor")(t, objects)
		if manager := text(t, objects.Get("Deployment", "berth-manager")); strings.Contains(manager, "metrics") {
			t.Errorf("the manager still serves metrics: %s", manager)
		}
		if policy := objects.Get("NetworkPolicy", "berth-manager"); policy.At("spec", "ingress") != nil {
			t.Error("the network policy still allows ingress")
		}
	}},
	{"no disruption budget, no network policy", "{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}}", without("PodDisruptionBudget", "NetworkPolicy")},
	{"where metrics are scraped from", "networkPolicy: {metricsFrom: {team: monitoring}}", func(t *testing.T, objects Objects) {
		policy := text(t, objects.Get("NetworkPolicy", "berth-manager"))
		if !strings.Contains(policy, "team: monitoring") || strings.Contains(policy, "metrics: enabled") {
			t.Errorf("wrong ingress in %s", policy)
		}
	}},
	{"no runtime", "runtimes: []", func(t *testing.T, objects Objects) {
		for key := range objects {
			if strings.HasSuffix(key, "berth-manager-pods") || strings.HasSuffix(key, "berth-manager-nodes") || strings.Contains(key, "ClusterRoleBinding") && strings.HasSuffix(key, "berth-manager-environment") {
				t.Errorf("%s still exists", key)
			}
		}
		if policy := objects.Get("NetworkPolicy", "berth-manager"); strings.Contains(text(t, policy), "namespaceSelector: {}") {
			t.Error("the manager may still reach Pods")
		}
		if manager := text(t, objects.Get("Deployment", "berth-manager")); !strings.Contains(manager, "- --runtimes=\n") {
			t.Errorf("the manager still has a runtime: %s", manager)
		}
	}},
	{"some namespaces", "watchNamespaces: [team-a, berth-system]", func(t *testing.T, objects Objects) {
		bound := map[string][]string{}
		for _, object := range objects {
			if strings.HasSuffix(object.Kind(), "Binding") && strings.HasPrefix(object.Name(), "berth-manager") {
				where := fmt.Sprint(object.Kind(), " ", object.At("metadata", "namespace"))
				bound[where] = append(bound[where], fmt.Sprint(object.At("roleRef", "kind"), "/", object.At("roleRef", "name")))
				slices.Sort(bound[where])
			}
		}
		watched := []string{"ClusterRole/berth-manager", "ClusterRole/berth-manager-environment", "ClusterRole/berth-manager-pods"}
		want := map[string][]string{
			"ClusterRoleBinding <nil>": {"ClusterRole/berth-manager-nodes", "ClusterRole/berth-manager-reviews"},
			"RoleBinding team-a":       watched, "RoleBinding berth-system": append(watched[:3:3], "Role/berth-manager"),
		}
		if !reflect.DeepEqual(bound, want) {
			t.Errorf("the manager is bound to %v, want %v", bound, want)
		}
		for _, name := range []string{"berth-manager-nodes", "berth-manager-reviews"} {
			if rules := text(t, objects.Get("ClusterRole", name)); !strings.Contains(rules, "- nodes") && !strings.Contains(rules, "reviews") || strings.Contains(rules, "- pods") {
				t.Errorf("%s has additional rights: %s", name, rules)
			}
		}
		if manager := text(t, objects.Get("Deployment", "berth-manager")); !strings.Contains(manager, "- --namespaces=team-a,berth-system\n") {
			t.Errorf("the manager serves other namespaces: %s", manager)
		}
	}},
	{"no CRDs", "crds: {install: false}", without("CustomResourceDefinition")},
	{"scheduling", "{nodeSelector: {disk: fast}, tolerations: [{operator: Exists}], priorityClassName: high, imagePullSecrets: [{name: key}], podLabels: {team: a}}",
		func(t *testing.T, objects Objects) {
			pod := []string{"spec", "template", "spec"}
			field("Deployment", "berth-manager", "fast", append(pod, "nodeSelector", "disk")...)(t, objects)
			field("Deployment", "berth-manager", "high", append(pod, "priorityClassName")...)(t, objects)
			field("Deployment", "berth-manager", "a", "spec", "template", "metadata", "labels", "team")(t, objects)
			field("Deployment", "berth-manager", "manager", "spec", "template", "metadata", "labels", "app.kubernetes.io/component")(t, objects)
		}},
	{"labels for Prometheus", "metrics: {prometheusRule: {enabled: true, labels: {release: prometheus}}}",
		field("PrometheusRule", "berth-manager", "prometheus", "metadata", "labels", "release")},
}

func TestVariations(t *testing.T) {
	for _, v := range variations {
		t.Run(v.name, func(t *testing.T) {
			if v.check == nil { // the values are invalid, because the tag is a number
				if _, err := Helm(root, Namespace, v.values); err == nil {
					t.Error("invalid values were accepted")
				}
				return
			}
			v.check(t, helmed(t, Namespace, v.values))
		})
	}
}

func TestEverythingFollowsTheNamespace(t *testing.T) {
	for key, object := range helmed(t, "elsewhere", complete) {
		if object.Kind() == "PrometheusRule" || object.Kind() == "CustomResourceDefinition" {
			continue // these kinds name the namespace only in texts
		}
		if rendered := text(t, object); strings.Contains(rendered, Namespace) {
			t.Errorf("%s names %s:\n%s", key, Namespace, rendered)
		}
	}
}

func TestKindsStayOnUninstall(t *testing.T) {
	kinds := 0
	for key, object := range helmed(t, Namespace, "") {
		if object.Kind() == "CustomResourceDefinition" {
			kinds++
			if object.At("metadata", "annotations", "helm.sh/resource-policy") != "keep" {
				t.Errorf("uninstalling would delete %s and all of its objects", key)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) != kinds || kinds < 7 {
		t.Errorf("%d CRDs from %d files (%v)", kinds, len(files), err)
	}
}

func TestTheSchemaRefusesMistakes(t *testing.T) {
	for _, values := range []string{
		"replicas: two", "replicas: -1", "replica: 2", "image: {pullPolicy: Sometimes}", "image: {digest: abc}", "image: {repository: ''}", "runtimes: [Host]",
		"policies: {programs: x}", "policies: {namespaces: {a: {commands: [x]}}}", "networkPolicy: {apiServerPorts: []}", "metrics: {serviceMonitor: true}",
		"extraArgs: --verbose", "extraArgs: [--runtimes=Host]", "extraArgs: [-runtimes, Host]", "extraArgs: [--namespaces=a]", "watchNamespaces: a", "watchNamespaces: [A]", "watchNamespaces: [a, a]", "nodeSelector: {a: 1}",
	} {
		if _, err := Helm(root, Namespace, values); err == nil || !strings.Contains(err.Error(), "check the values") {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// Helm stores the chart and the manifest of a release in a Secret of at most 1 MiB, encoded twice as base64.
func TestAReleaseFitsIntoItsSecret(t *testing.T) {
	read, err := LoadChart(root)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	for _, file := range read.Raw {
		_, _ = writer.Write(file.Data)
	}
	for _, object := range helmed(t, Namespace, complete) {
		_, _ = writer.Write([]byte(text(t, object)))
	}
	_ = writer.Close()
	if limit := 1 << 20 / 2; packed.Len() > limit {
		t.Errorf("%d bytes of at most %d", packed.Len(), limit)
	}
}

func kustomized(t *testing.T, folder string) Objects {
	t.Helper()
	objects, err := Kustomize(root, folder)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func helmed(t *testing.T, namespace, values string) Objects {
	t.Helper()
	objects, err := Helm(root, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func text(t *testing.T, object Object) string {
	t.Helper()
	rendered, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(rendered)
}

// field checks that an object has the value want at the path fields.
func field(kind, name string, want any, fields ...string) func(*testing.T, Objects) {
	return func(t *testing.T, objects Objects) {
		t.Helper()
		if got := objects.Get(kind, name).At(fields...); !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s %v is %v, want %v", kind, name, fields, got, want)
		}
	}
}

func image(want string) func(*testing.T, Objects) {
	return func(t *testing.T, objects Objects) {
		t.Helper()
		containers, _ := objects.Get("Deployment", "berth-manager").At("spec", "template", "spec", "containers").([]any)
		if got := fmt.Sprint(Object(containers[0].(map[string]any)).At("image")); got != want {
			t.Errorf("image is %s, want %s", got, want)
		}
	}
}

// without checks that there are objects, but none of these kinds.
func without(kinds ...string) func(*testing.T, Objects) {
	return func(t *testing.T, objects Objects) {
		t.Helper()
		if objects.Get("Deployment", "berth-manager") == nil {
			t.Error("there is no manager")
		}
		for key, object := range objects {
			if slices.Contains(kinds, object.Kind()) {
				t.Errorf("unexpected object %s", key)
			}
		}
	}
}
