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

// repository is the default name of the image, without a tag.
const repository = "ghcr.io/berth-dev/berth"

// complete are the values with which the chart creates all objects of config/.
const complete = `metrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}`

func TestChart_EqualsKustomization(t *testing.T) {
	kustomize := renderKustomization(t, "config/default")
	maps.Copy(kustomize, renderKustomization(t, "config/prometheus"))
	helm := renderChart(t, Namespace, complete)
	kustomize, helm = kustomize.Comparable(), helm.Comparable()
	if len(kustomize) < 30 {
		t.Fatalf("config/default has %d objects", len(kustomize))
	}
	for _, key := range slices.Sorted(maps.Keys(kustomize)) {
		if helm[key] == nil {
			t.Errorf("the chart has no %s", key)
		} else if !reflect.DeepEqual(kustomize[key], helm[key]) {
			t.Errorf("%s differs: the chart has\n%s\nand config/default\n%s", key, toYAML(t, helm[key]), toYAML(t, kustomize[key]))
		}
	}
	for key := range helm {
		if kustomize[key] == nil {
			t.Errorf("config/default has no %s", key)
		}
	}
}

func TestChart_MonitoringIsOffByDefault(t *testing.T) {
	if got, want := len(renderChart(t, Namespace, "")), len(renderChart(t, Namespace, complete)); got != want-3 {
		t.Errorf("%d objects by default, %d with all of monitoring", got, want)
	}
}

// variations are values of the chart, each with a check of the objects that these values change.
var variations = []struct {
	name, values string
	check        func(t *testing.T, objects Objects)
}{
	{"replicas", "replicas: 5", expectField("Deployment", "berth-manager", 5.0, "spec", "replicas")},
	{"tag", "image: {tag: 9.9.9}", expectImage(repository + ":9.9.9")},
	{"repository", "image: {repository: local/berth}", expectImage("local/berth:0.1.0")},
	{"digest", "image: {tag: 1, digest: 'sha256:" + strings.Repeat("a", 64) + "'}", nil},
	{"digest wins", "image: {tag: '1', digest: 'sha256:" + strings.Repeat("a", 64) + "'}", expectImage(repository + "@sha256:" + strings.Repeat("a", 64))},
	{"no policies", "policies: {enabled: false}", expectWithout("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap")},
	{"namespace policy", `policies: {commands: "gohello\n/opt/*", namespaces: {team-a: {runtimes: Host}}}`, func(t *testing.T, objects Objects) {
		expectField("ConfigMap", "berth-policy", "gohello\n/opt/*", "data", "commands")(t, objects)
		expectField("ConfigMap", "berth-policy", "Host", "data", "runtimes.team-a")(t, objects)
		expectField("ConfigMap", "berth-policy", "Pod", "data", "runtimes")(t, objects)
	}},
	{"names of variables", `policies: {environment: "LOG_*", settings: gopls, namespaces: {team-a: {environment: "*"}}}`, func(t *testing.T, objects Objects) {
		expectField("ConfigMap", "berth-policy", "LOG_*", "data", "environment")(t, objects)
		expectField("ConfigMap", "berth-policy", "gopls", "data", "settings")(t, objects)
		expectField("ConfigMap", "berth-policy", "*", "data", "environment.team-a")(t, objects)
	}},
	{"no metrics", "metrics: {enabled: false, serviceMonitor: {enabled: true}}", func(t *testing.T, objects Objects) {
		expectWithout("Service", "ServiceMonitor")(t, objects)
		if manager := toYAML(t, objects.Get("Deployment", "berth-manager")); strings.Contains(manager, "metrics") {
			t.Errorf("the manager still serves metrics: %s", manager)
		}
		if policy := objects.Get("NetworkPolicy", "berth-manager"); policy.At("spec", "ingress") != nil {
			t.Error("the network policy still allows ingress")
		}
	}},
	{"no disruption budget, no network policy", "{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}}", expectWithout("PodDisruptionBudget", "NetworkPolicy")},
	{"metrics ingress labels", "networkPolicy: {metricsFrom: {team: monitoring}}", func(t *testing.T, objects Objects) {
		policy := toYAML(t, objects.Get("NetworkPolicy", "berth-manager"))
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
		if policy := objects.Get("NetworkPolicy", "berth-manager"); strings.Contains(toYAML(t, policy), "namespaceSelector: {}") {
			t.Error("the manager may still reach Pods")
		}
		if manager := toYAML(t, objects.Get("Deployment", "berth-manager")); !strings.Contains(manager, "- --runtimes=\n") {
			t.Errorf("the manager still has a runtime: %s", manager)
		}
	}},
	{"some namespaces", "watchNamespaces: [team-a, berth-system]", func(t *testing.T, objects Objects) {
		bound := map[string][]string{}
		for _, object := range objects {
			if strings.HasSuffix(object.Kind(), "RoleBinding") && strings.HasPrefix(object.Name(), "berth-manager") {
				where := fmt.Sprint(object.Kind(), " ", object.At("metadata", "namespace"))
				bound[where] = append(bound[where], fmt.Sprint(object.At("roleRef", "kind"), "/", object.At("roleRef", "name")))
				slices.Sort(bound[where])
			}
		}
		watched := []string{"ClusterRole/berth-manager", "ClusterRole/berth-manager-environment", "ClusterRole/berth-manager-pods"}
		want := map[string][]string{
			"ClusterRoleBinding <nil>": {"ClusterRole/berth-manager-nodes", "ClusterRole/berth-manager-reviews"},
			"RoleBinding team-a":       watched, "RoleBinding berth-system": append(watched[:3:3], "Role/berth-manager", "Role/berth-manager-hosts"),
		}
		if !reflect.DeepEqual(bound, want) {
			t.Errorf("the manager is bound to %v, want %v", bound, want)
		}
		for _, name := range []string{"berth-manager-nodes", "berth-manager-reviews"} {
			if rules := toYAML(t, objects.Get("ClusterRole", name)); !strings.Contains(rules, "- nodes") && !strings.Contains(rules, "reviews") || strings.Contains(rules, "- pods") {
				t.Errorf("%s has additional rights: %s", name, rules)
			}
		}
		if manager := toYAML(t, objects.Get("Deployment", "berth-manager")); !strings.Contains(manager, "- --namespaces=team-a,berth-system\n") {
			t.Errorf("the manager serves other namespaces: %s", manager)
		}
	}},
	{"no CRDs", "crds: {install: false}", expectWithout("CustomResourceDefinition")},
	{"scheduling", "{nodeSelector: {disk: fast}, tolerations: [{operator: Exists}], priorityClassName: high, imagePullSecrets: [{name: key}], podLabels: {team: a}}",
		func(t *testing.T, objects Objects) {
			pod := []string{"spec", "template", "spec"}
			expectField("Deployment", "berth-manager", "fast", append(pod, "nodeSelector", "disk")...)(t, objects)
			expectField("Deployment", "berth-manager", "high", append(pod, "priorityClassName")...)(t, objects)
			expectField("Deployment", "berth-manager", "a", "spec", "template", "metadata", "labels", "team")(t, objects)
			expectField("Deployment", "berth-manager", "manager", "spec", "template", "metadata", "labels", "app.kubernetes.io/component")(t, objects)
		}},
	{"labels for Prometheus", "metrics: {prometheusRule: {enabled: true, labels: {release: prometheus}}}",
		expectField("PrometheusRule", "berth-manager", "prometheus", "metadata", "labels", "release")},
	{"debug log level", "logLevel: debug", func(t *testing.T, objects Objects) {
		if args, _ := managerContainer(objects).At("args").([]any); !slices.Contains(args, any("--verbose")) {
			t.Errorf("no --verbose in %v", args)
		}
	}},
	{"info log level", "logLevel: info", func(t *testing.T, objects Objects) {
		if args, _ := managerContainer(objects).At("args").([]any); slices.Contains(args, any("--verbose")) {
			t.Errorf("--verbose in %v", args)
		}
	}},
	{"environment", "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy:3128'}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]", func(t *testing.T, objects Objects) {
		env := objectList(managerContainer(objects).At("env"))
		var names []any
		for _, entry := range env {
			names = append(names, entry.At("name"))
		}
		if want := []any{"POD_NAME", "POD_NAMESPACE", "HTTPS_PROXY", "KEY"}; !reflect.DeepEqual(names, want) {
			t.Fatalf("variables are %v, want %v", names, want)
		}
		if env[2].At("value") != "http://proxy:3128" || env[3].At("valueFrom", "secretKeyRef", "key") != "k" {
			t.Errorf("wrong values in %v", env)
		}
	}},
	{"volumes", "{extraVolumes: [{name: ca, configMap: {name: ca}}], extraVolumeMounts: [{name: ca, mountPath: /ca, readOnly: true}]}", func(t *testing.T, objects Objects) {
		expectField("Deployment", "berth-manager", []any{map[string]any{"name": "ca", "configMap": map[string]any{"name": "ca"}}}, "spec", "template", "spec", "volumes")(t, objects)
		if got, want := managerContainer(objects).At("volumeMounts"), any([]any{map[string]any{"name": "ca", "mountPath": "/ca", "readOnly": true}}); !reflect.DeepEqual(got, want) {
			t.Errorf("mounts are %v, want %v", got, want)
		}
	}},
	{"certificate of the metrics", "{metrics: {serviceMonitor: {enabled: true}, certificate: {secretName: metrics-tls, issuerRef: {name: ca, kind: ClusterIssuer}}}, " +
		"extraVolumes: [{name: ca, configMap: {name: ca}}], extraVolumeMounts: [{name: ca, mountPath: /ca}]}", func(t *testing.T, objects Objects) {
		host := "berth-metrics." + Namespace + ".svc"
		expectField("Certificate", "berth-metrics", "metrics-tls", "spec", "secretName")(t, objects)
		expectField("Certificate", "berth-metrics", []any{host}, "spec", "dnsNames")(t, objects)
		expectField("Certificate", "berth-metrics", "ClusterIssuer", "spec", "issuerRef", "kind")(t, objects)
		tls := objectList(objects.Get("ServiceMonitor", "berth-manager").At("spec", "endpoints"))[0].At("tlsConfig")
		if want := any(map[string]any{"serverName": host, "ca": map[string]any{"secret": map[string]any{"name": "metrics-tls", "key": "ca.crt"}}}); !reflect.DeepEqual(tls, want) {
			t.Errorf("tlsConfig is %v, want %v", tls, want)
		}
		pod := Object(objects.Get("Deployment", "berth-manager").At("spec", "template", "spec").(map[string]any))
		volumes, mounts := objectList(pod.At("volumes")), objectList(managerContainer(objects).At("volumeMounts"))
		if len(volumes) != 2 || volumes[0].At("secret", "secretName") != "metrics-tls" || len(mounts) != 2 || mounts[0].At("mountPath") != "/etc/berth/metrics" {
			t.Errorf("volumes %v and mounts %v", volumes, mounts)
		}
		if args := fmt.Sprint(managerContainer(objects).At("args")); !strings.Contains(args, "--metrics-cert-dir=/etc/berth/metrics") {
			t.Errorf("no certificate directory in %s", args)
		}
	}},
	{"service account", "{serviceAccount: {name: other, annotations: {a.example/role: arn}}, watchNamespaces: [team-a]}", func(t *testing.T, objects Objects) {
		expectField("ServiceAccount", "other", "arn", "metadata", "annotations", "a.example/role")(t, objects)
		expectField("Deployment", "berth-manager", "other", "spec", "template", "spec", "serviceAccountName")(t, objects)
		bindings := 0
		for key, object := range objects {
			for _, subject := range objectList(object.At("subjects")) {
				if subject.At("kind") != "ServiceAccount" {
					continue
				}
				bindings++
				if subject.At("name") != "other" || subject.At("namespace") != Namespace {
					t.Errorf("%s binds its role to %v", key, subject)
				}
			}
		}
		if bindings != 7 || objects.Get("ServiceAccount", "berth-manager") != nil {
			t.Errorf("%d bindings to the ServiceAccount, want 7, and no ServiceAccount berth-manager", bindings)
		}
	}},
	{"common labels", "{commonLabels: {team: a, release: x}, podLabels: {team: b}, metrics: {dashboard: {enabled: true}, prometheusRule: {enabled: true, labels: {release: prometheus}}}}",
		func(t *testing.T, objects Objects) {
			for key, object := range objects {
				if object.At("metadata", "labels", "team") != "a" || object.At("metadata", "labels", "app.kubernetes.io/name") != "berth" {
					t.Errorf("%s has the labels %v", key, object.At("metadata", "labels"))
				}
			}
			expectField("PrometheusRule", "berth-manager", "prometheus", "metadata", "labels", "release")(t, objects)
			expectField("Deployment", "berth-manager", "x", "spec", "template", "metadata", "labels", "release")(t, objects)
			expectField("Deployment", "berth-manager", "b", "spec", "template", "metadata", "labels", "team")(t, objects)
			expectField("Deployment", "berth-manager", map[string]any{"app.kubernetes.io/name": "berth", "app.kubernetes.io/component": "manager"}, "spec", "selector", "matchLabels")(t, objects)
		}},
	{"values of an earlier chart", "{serviceAccount: null, extraEnv: null, extraVolumes: null, extraVolumeMounts: null, commonLabels: null, logLevel: null}", expectDefault},
	{"values for a parent chart", "{enabled: false, global: {team: a}}", expectDefault},
}

func TestChart_ValuesChangeObjects(t *testing.T) {
	for _, v := range variations {
		t.Run(v.name, func(t *testing.T) {
			if v.check == nil { // the values are invalid, because the tag is a number
				if _, err := Helm(root, Namespace, v.values); err == nil {
					t.Error("invalid values were accepted")
				}
				return
			}
			v.check(t, renderChart(t, Namespace, v.values))
		})
	}
}

func TestChart_RendersAsSubchart(t *testing.T) {
	for _, s := range []struct{ name, values, standalone string }{
		{"no values", "{}", "{}"},
		{"global", "global: {team: {name: a}}", "{}"},
		{"enabled", "berth: {enabled: true, replicas: 5}", "replicas: 5"},
	} {
		t.Run(s.name, func(t *testing.T) {
			objects, err := HelmSubchart(root, Namespace, s.values)
			if err != nil {
				t.Fatal(err)
			}
			if want := renderChart(t, Namespace, s.standalone); !reflect.DeepEqual(objects, want) {
				t.Errorf("the dependency renders %d objects, which differ from the %d objects of the chart", len(objects), len(want))
			}
		})
	}
}

func TestChart_RendersNothingAsDisabledSubchart(t *testing.T) {
	if objects, err := HelmSubchart(root, Namespace, "berth: {enabled: false}"); err != nil || len(objects) > 0 {
		t.Errorf("%d objects (%v)", len(objects), err)
	}
}

func TestChart_SubchartRejectsInvalidValues(t *testing.T) {
	for _, values := range []string{"berth: {enabled: 'no'}", "berth: {replica: 2}", "{global: {team: a}, berth: {logLevel: warn}}"} {
		if _, err := HelmSubchart(root, Namespace, values); err == nil || !strings.Contains(err.Error(), "check the values") {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// helm test must run the image in the way that the nodes run the manager.
func TestChart_TestRunsImageLikeManager(t *testing.T) {
	objects := renderChart(t, Namespace, `{imagePullSecrets: [{name: key}], nodeSelector: {disk: fast}, tolerations: [{operator: Exists}], priorityClassName: high,
		affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}, podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}}`)
	test := objects.Get("Pod", "berth-test")
	if test.At("metadata", "annotations", "helm.sh/hook") != "test" {
		t.Errorf("the Pod is not a test: %v", test.At("metadata"))
	}
	pod := Object(objects.Get("Deployment", "berth-manager").At("spec", "template", "spec").(map[string]any))
	for _, field := range []string{"securityContext", "imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName"} {
		if got, want := test.At("spec", field), pod.At(field); want == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", field, got, want)
		}
	}
	if affinity, _ := test.At("spec", "affinity").(map[string]any); len(affinity) != 1 || affinity["nodeAffinity"] == nil {
		t.Errorf("affinity is %v, want only nodeAffinity", affinity)
	}
	container := objectList(test.At("spec", "containers"))[0]
	for _, field := range []string{"image", "imagePullPolicy", "securityContext", "resources"} {
		if got, want := container.At(field), managerContainer(objects).At(field); want == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", field, got, want)
		}
	}
	if args := container.At("args"); !reflect.DeepEqual(args, []any{"version"}) || container.At("command") != nil {
		t.Errorf("runs %v %v", container.At("command"), args)
	}
	// The Service, the network policy and the disruption budget select the Pods of the manager by this label.
	if component := test.At("metadata", "labels", "app.kubernetes.io/component"); component != "test" {
		t.Errorf("component is %v, want test", component)
	}
}

func TestChart_MetadataIsComplete(t *testing.T) {
	read, err := LoadChart(root)
	if err != nil {
		t.Fatal(err)
	}
	metadata := read.Metadata
	if metadata.Home == "" || len(metadata.Sources) == 0 || len(metadata.Maintainers) == 0 || metadata.Maintainers[0].Name == "" {
		t.Errorf("home %q, sources %v or maintainers %v are missing", metadata.Home, metadata.Sources, metadata.Maintainers)
	}
	if license := metadata.Annotations["artifacthub.io/license"]; license != "Apache-2.0" {
		t.Errorf("license is %q", license)
	}
	// The categories that Artifact Hub knows.
	categories := []string{"ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "storage", "streaming-messaging", "skip-prediction"}
	if category := metadata.Annotations["artifacthub.io/category"]; !slices.Contains(categories, category) {
		t.Errorf("category is %q", category)
	}
	expectEntries(t, metadata.Annotations, "artifacthub.io/links", "name", "url")
	for _, change := range expectEntries(t, metadata.Annotations, "artifacthub.io/changes", "kind", "description") {
		if kinds := []string{"added", "changed", "deprecated", "removed", "fixed", "security"}; !slices.Contains(kinds, change["kind"]) {
			t.Errorf("kind of change is %q", change["kind"])
		}
	}
	var got, want []string
	for _, crd := range expectEntries(t, metadata.Annotations, "artifacthub.io/crds", "kind", "version", "name", "displayName", "description") {
		got = append(got, crd["name"]+" "+crd["kind"]+" "+crd["version"])
	}
	for _, object := range renderChart(t, Namespace, "") {
		if object.Kind() == "CustomResourceDefinition" {
			for _, version := range objectList(object.At("spec", "versions")) {
				want = append(want, fmt.Sprint(object.Name(), " ", object.At("spec", "names", "kind"), " ", version.At("name")))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("artifacthub.io/crds lists %v, want %v", got, want)
	}
}

// expectEntries returns the entries of an annotation that is a YAML list, and checks that each entry has these fields.
func expectEntries(t *testing.T, annotations map[string]string, name string, fields ...string) []map[string]string {
	t.Helper()
	var entries []map[string]string
	if err := yaml.UnmarshalStrict([]byte(annotations[name]), &entries); err != nil || len(entries) == 0 {
		t.Fatalf("%s has %d entries (%v)", name, len(entries), err)
	}
	for _, entry := range entries {
		for _, field := range fields {
			if entry[field] == "" {
				t.Errorf("%s: no %s in %v", name, field, entry)
			}
		}
	}
	return entries
}

func TestChart_UsesGivenNamespace(t *testing.T) {
	for key, object := range renderChart(t, "elsewhere", complete) {
		if object.Kind() == "PrometheusRule" || object.Kind() == "CustomResourceDefinition" {
			continue // these kinds contain the name of the namespace only in descriptions
		}
		if rendered := toYAML(t, object); strings.Contains(rendered, Namespace) {
			t.Errorf("%s names %s:\n%s", key, Namespace, rendered)
		}
	}
}

func TestChart_KeepsCRDsOnUninstall(t *testing.T) {
	kinds := 0
	for key, object := range renderChart(t, Namespace, "") {
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

func TestChart_SchemaRejectsInvalidValues(t *testing.T) {
	for _, values := range []string{
		"replicas: two", "replicas: -1", "replica: 2", "image: {pullPolicy: Sometimes}", "image: {digest: abc}", "image: {repository: ''}", "runtimes: [Host]",
		"policies: {programs: x}", "policies: {namespaces: {a: {commands: [x]}}}", "networkPolicy: {apiServerPorts: []}", "metrics: {serviceMonitor: true}", "metrics: {certificate: {secretName: A}}", "metrics: {certificate: {issuerRef: {name: a}}}",
		"extraArgs: --verbose", "extraArgs: [--runtimes=Host]", "extraArgs: [-runtimes, Host]", "extraArgs: [--namespaces=a]", "watchNamespaces: a", "watchNamespaces: [A]", "watchNamespaces: [a, a]", "nodeSelector: {a: 1}",
		"global: text", "enabled: 'true'", "logLevel: warn", "logLevel: true", "extraEnv: {A: b}", "extraEnv: [{value: b}]", "extraEnv: [{name: A, value: 1}]", "extraEnv: [{name: POD_NAME, value: b}]",
		"extraVolumes: {name: a}", "extraVolumes: [{emptyDir: {}}]", "extraVolumeMounts: [a]", "extraVolumeMounts: [{name: a}]", "commonLabels: [a]", "commonLabels: {a: 1}",
		"commonLabels: {app.kubernetes.io/component: a}", "serviceAccount: a", "serviceAccount: {name: A}", "serviceAccount: {name: default}", "serviceAccount: {annotations: {a: 1}}", "serviceAccount: {create: false}",
	} {
		if _, err := Helm(root, Namespace, values); err == nil || !strings.Contains(err.Error(), "check the values") {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// Helm stores the chart and the manifest of a release in a Secret of at most 1 MiB, encoded twice as base64.
func TestChart_ReleaseFitsIntoSecret(t *testing.T) {
	read, err := LoadChart(root)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	for _, file := range read.Raw {
		_, _ = writer.Write(file.Data)
	}
	for _, object := range renderChart(t, Namespace, complete) {
		_, _ = writer.Write([]byte(toYAML(t, object)))
	}
	_ = writer.Close()
	if limit := 1 << 20 / 2; packed.Len() > limit {
		t.Errorf("%d bytes of at most %d", packed.Len(), limit)
	}
}

func renderKustomization(t *testing.T, folder string) Objects {
	t.Helper()
	objects, err := Kustomize(root, folder)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func renderChart(t *testing.T, namespace, values string) Objects {
	t.Helper()
	objects, err := Helm(root, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func toYAML(t *testing.T, object Object) string {
	t.Helper()
	rendered, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(rendered)
}

// expectField checks that an object has the value want at the path fields.
func expectField(kind, name string, want any, fields ...string) func(*testing.T, Objects) {
	return func(t *testing.T, objects Objects) {
		t.Helper()
		if got := objects.Get(kind, name).At(fields...); !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s %v is %v, want %v", kind, name, fields, got, want)
		}
	}
}

// expectDefault checks that the objects are those of the default values.
func expectDefault(t *testing.T, objects Objects) {
	t.Helper()
	want := renderChart(t, Namespace, "")
	if len(objects) != len(want) {
		t.Errorf("%d objects, want %d", len(objects), len(want))
	}
	for key := range want {
		if !reflect.DeepEqual(objects[key], want[key]) {
			t.Errorf("%s differs from the one of the default values", key)
		}
	}
}

// managerContainer returns the container of the manager.
func managerContainer(objects Objects) Object {
	return objectList(objects.Get("Deployment", "berth-manager").At("spec", "template", "spec", "containers"))[0]
}

func expectImage(want string) func(*testing.T, Objects) {
	return func(t *testing.T, objects Objects) {
		t.Helper()
		if got := fmt.Sprint(managerContainer(objects).At("image")); got != want {
			t.Errorf("image is %s, want %s", got, want)
		}
	}
}

// expectWithout checks that there are objects, but none of these kinds.
func expectWithout(kinds ...string) func(*testing.T, Objects) {
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
