// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

// values returns texts in JSON for a field: some that its schema allows, and some that its Go type may be unable to decode. The first group depends only on the
// type and format of the field.
func values(schema schemaProps) []string {
	quote := func(texts ...string) (quoted []string) {
		for _, text := range texts {
			quoted = append(quoted, fmt.Sprintf("%q", text))
		}
		return quoted
	}
	switch {
	case schema.XIntOrString:
		return append(quote(quantities...), numbers...)
	case schema.Type == "integer", schema.Type == "number":
		return append([]string{fmt.Sprint(minimum(schema))}, numbers...)
	case schema.Format == "date-time":
		return quote(times...)
	case len(schema.Enum) > 0:
		all := []string{`"Bogus"`, "null"}
		for _, value := range schema.Enum {
			all = append(all, string(value.Raw))
		}
		return all
	case schema.Type == "string":
		return append(quote(texts...), text(sample(schema)), `"\u0000\ud800"`, "null")
	default:
		return []string{text(sample(schema)), "{}", "[]", "null"}
	}
}

var (
	quantities = []string{
		"1", "1Gi", "500m", "+1", "-1", "1.5", "1.", ".5", "1e3", "1E3", "1e-3", "1e1.5", "1e.5", "1e5.", "1E+1.5", "1e99", "1e-99", "1e100", "1e999", "1e-999", "1e2147483647",
		"1e-2147483648", "1e2147483648", "1e99999999999999999999", "9223372036854775808", "99999999999999999999999999999999", "999999999999999999999999999999999Ei",
		"0.000000000000000000000000000000001", "18446744073709551616n", strings.Repeat("9", 4000), "1." + strings.Repeat("9", 4000), "", " 1", "1 ", "0x10", "1_000", "NaN", "Inf", "1ki", "1K", "١", "1\n",
	}
	numbers = []string{
		"0", "1", "-1", "1.0", "1.5", "1e3", "1e-3", "-0.0", "2147483647", "2147483648", "-2147483649", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
		"-9223372036854775809", "18446744073709551616", "1e19", "1e21", "1e40", "1e300", "-1e300", "null",
	}
	times = []string{
		"2026-01-02T03:04:05.000006Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.Z",
		"2026-01-02T03:04:05,123456Z", "2026-01-02T03:04:05.123456+01:00", "2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05.123456-23:59", "2026-01-02T03:04:05.123456+24:00",
		"2026-01-02T03:04:05.123456+99:99", "2026-01-02T03:04:05.123456+0100", "2026-01-02t03:04:05.123456z", "2026-01-02 03:04:05.123456Z", "2026-01-02T03:04Z", "2026-01-02T03:04:05",
		"2026-01-02T03:04:05.123456", "2026-01-02T3:04:05.123456Z", "2026-01-02T24:00:00.000000Z", "2026-01-02T23:59:60.000000Z", "2026-02-29T03:04:05.123456Z", "2026-02-30T00:00:00Z",
		"2026-04-31T00:00:00.000000Z", "2026-13-01T00:00:00.000000Z", "2026-00-00T00:00:00.000000Z", "2026-01-00T00:00:00.000000Z", "0000-01-01T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z",
		"9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999-23:59", "10000-01-01T00:00:00.000000Z", "-001-01-01T00:00:00.000000Z", "2026-01-02", "2026-01-02T03:04:05.123456Z\n",
		" 2026-01-02T03:04:05.123456Z", "2026-1-2T03:04:05.123456Z", "2026-01-02T03:60:05.123456Z", "2026-01-02T03:04:61.123456Z", "", "1767323045",
	}
	texts = []string{"", "a", "/a", "1h", "\u202e", "!!!"}
)

// TestAdmission_AcceptsOnlyObjectsThatDecode sends values for each field of each kind to a real API server, the spec by creation and the status by a patch.
// Each object that the API server accepts must decode into its Go type, because an object that does not decode would stop the lists and watches of its kind.
func TestAdmission_AcceptsOnlyObjectsThatDecode(t *testing.T) {
	api := restClient(t)
	for _, kind := range allKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			root := *definition(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema
			stored := object(t, kind, "decode-"+strings.ToLower(kind), "{}")
			NewWithT(t).Expect(k8s.Create(t.Context(), stored)).To(Succeed())
			t.Cleanup(func() { _ = k8s.Delete(t.Context(), stored) })
			d := decoding{t: t, api: api, kind: kind, stored: stored.GetName()}
			d.try("metadata", metadata, func(value string) map[string]any { return map[string]any{"metadata": parse(t, value)} })
			for _, part := range []string{"spec", "status"} {
				schema, exists := root.Properties[part]
				if !exists {
					continue
				}
				visitLeaves(schema, nil, func(path []string, leaf schemaProps) {
					d.try(part+strings.Join(append([]string{""}, path...), "."), values(leaf), func(value string) map[string]any {
						return map[string]any{part: map[string]any{path[0]: at(schema.Properties[path[0]], path[1:], json.RawMessage(value))}}
					})
				})
			}
			t.Logf("%d of %d objects accepted, %d fields", d.accepted, d.sent, d.fields)
		})
	}
}

// metadata are values of metadata, which the API server checks without the schema of the kind.
var metadata = []string{
	"{}", `{"labels": {"a": null}}`, `{"labels": {"a": 1}}`, `{"annotations": {"a": null}}`, `{"creationTimestamp": "2026-01-02T03:04Z"}`, `{"creationTimestamp": 1}`,
	`{"deletionTimestamp": "0000-01-01 00:00:00Z"}`, `{"deletionGracePeriodSeconds": 1e30}`, `{"deletionGracePeriodSeconds": 1.5}`, `{"generation": 1e30}`, `{"generation": "a"}`,
	`{"finalizers": [null]}`, `{"ownerReferences": [null]}`, `{"ownerReferences": [{"apiVersion": "v1", "kind": "a", "name": "a", "uid": "a", "controller": null}]}`,
	`{"managedFields": [{"time": "2026-01-02T03:04Z"}]}`, `{"managedFields": [{"fieldsV1": 1}]}`, `{"managedFields": null}`, `{"resourceVersion": 1}`, `{"selfLink": 1}`,
}

// surroundings are the values of other fields that the rules of a kind require beside a field whose path contains the key. A path in at ends at an item of a
// list, if [] is in it.
var surroundings = []struct{ beside, at, values string }{
	{"spec.runtime.pod.", "spec.runtime", `{"type": "Pod"}`},
	{"spec.runtime.tmux.", "spec.runtime", `{"type": "Tmux"}`},
	{"spec.runtime.docker.", "spec.runtime", `{"type": "Docker"}`},
	{"spec.runtime.docker.", "spec.runtime.docker", `{"image": "a"}`},
	{"spec.process.envFrom.[].prefix", "spec.process.envFrom[]", `{"secretRef": {"name": "a"}}`},
	{"spec.liveness.failureThreshold", "spec.liveness", `{"tcpSocket": {}}`},
	{"spec.liveness.periodSeconds", "spec.liveness", `{"tcpSocket": {}}`},
	{"spec.liveness.timeoutSeconds", "spec.liveness", `{"tcpSocket": {}}`},
	{"spec.readiness.failureThreshold", "spec.readiness", `{"tcpSocket": {}}`},
	{"spec.readiness.periodSeconds", "spec.readiness", `{"tcpSocket": {}}`},
	{"spec.readiness.timeoutSeconds", "spec.readiness", `{"tcpSocket": {}}`},
	{"spec.runtime.", "spec.runtime", `{"type": "Host"}`},
	{"status.pinned.runtime.pod.", "status.pinned.runtime", `{"type": "Pod"}`},
	{"status.pinned.runtime.", "status.pinned.runtime", `{"type": "Host"}`},
	{"status.pinned.process.envFrom.[].prefix", "status.pinned.process.envFrom[]", `{"secretRef": {"name": "a"}}`},
	{"spec.sources.[].docker.", "spec.sources[]", `{"type": "Docker"}`},
	{"spec.sources.", "spec.sources[]", `{"type": "Tmux"}`},
}

// neverAccepted reports whether the API server accepts no value of a field: a new Plan has no approval, whose fields are only enums and bounded integers, and
// only Instances have a resumeCommand.
func neverAccepted(kind, path string) bool {
	return strings.HasPrefix(path, "spec.approval.") || kind != kindInstance && strings.HasPrefix(path, "spec.process.resumeCommand.")
}

// answerTimeout bounds a request. The API server once computed for hours to compare the quantity 1e2147483647 with a bound.
const answerTimeout = 15 * time.Second

// decoding counts the objects of one kind that were sent and accepted.
type decoding struct {
	t                      *testing.T
	api                    rest.Interface
	kind, stored           string
	sent, accepted, fields int
}

// try sends an object with each of the values. It reports accepted objects that do not decode, and fields for which the API server accepts no value.
func (d *decoding) try(path string, values []string, content func(value string) map[string]any) {
	d.t.Helper()
	d.fields++
	before, refused := d.accepted, map[string]string{}
	for _, value := range values {
		d.sent++
		answer, err := d.send(path, content(value))
		switch {
		case err == nil:
			d.accepted++
			if _, _, err := codecs.UniversalDeserializer().Decode(answer, nil, nil); err != nil {
				d.t.Errorf("%s %s: the API server accepts %.100s, which does not decode: %.300v", d.kind, path, value, err)
			}
		case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			refused[value] = err.Error()
		default:
			d.t.Fatalf("%s %s %.100s: %v", d.kind, path, value, err)
		}
	}
	if d.accepted == before && !neverAccepted(d.kind, path) {
		d.t.Errorf("%s %s: the API server accepts no value: %.700v", d.kind, path, refused)
	}
}

// send creates an object or patches the status of the stored object, as a dry run, and returns the answer.
func (d *decoding) send(path string, content map[string]any) ([]byte, error) {
	request := d.api.Post()
	if strings.HasPrefix(path, "status") {
		addSurroundings(d.t, path, content)
		request = d.api.Patch(types.MergePatchType).Name(d.stored).SubResource("status")
	} else {
		whole := object(d.t, d.kind, "decode", "{}").Object
		merge(whole, content)
		addSurroundings(d.t, path, whole)
		content = whole
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), answerTimeout)
	defer cancel()
	answer := request.Namespace("default").Resource(plural(d.kind)).Param("dryRun", "All").Body([]byte(text(content))).Do(ctx)
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// addSurroundings adds what a field at the path requires beside it.
func addSurroundings(t *testing.T, path string, content map[string]any) {
	t.Helper()
	for _, other := range surroundings {
		if strings.HasPrefix(path, other.beside) {
			addMissing(content, strings.Split(other.at, "."), parse(t, other.values))
		}
	}
}

// addMissing adds the values that the object at the path in content lacks.
func addMissing(content map[string]any, path []string, values map[string]any) {
	if len(path) == 0 {
		for name, value := range values {
			if _, set := content[name]; !set {
				content[name] = value
			}
		}
		return
	}
	name, isList := strings.CutSuffix(path[0], "[]")
	inner := content[name]
	if list, ok := inner.([]any); ok && isList {
		inner = list[0]
	}
	if object, ok := inner.(map[string]any); ok {
		addMissing(object, path[1:], values)
	}
}

// codecs decode answers as the client of the manager does.
var codecs = serializer.NewCodecFactory(manager.Scheme())

func restClient(t *testing.T) rest.Interface {
	t.Helper()
	unlimited := rest.CopyConfig(config)
	unlimited.QPS = -1
	unlimited.GroupVersion, unlimited.APIPath = &v1alpha1.GroupVersion, "/apis"
	unlimited.NegotiatedSerializer = codecs.WithoutConversion()
	api, err := rest.RESTClientFor(unlimited)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return api
}

// visitLeaves visits the schemas of all fields that have no nested fields. In a path, [] is an item of a list, and * is a value of a map.
func visitLeaves(schema schemaProps, path []string, visit func(path []string, leaf schemaProps)) {
	path = slices.Clone(path)
	switch {
	case len(schema.Properties) > 0:
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
			visitLeaves(schema.Properties[name], append(path, name), visit)
		}
	case schema.Items != nil:
		visitLeaves(*schema.Items.Schema, append(path, "[]"), visit)
	case schema.AdditionalProperties != nil:
		visitLeaves(*schema.AdditionalProperties.Schema, append(path, "*"), visit)
	default:
		visit(path, schema)
	}
}

// at returns a value of the schema that has value at the path, and valid values in required fields.
func at(schema schemaProps, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	switch path[0] {
	case "[]":
		return []any{at(*schema.Items.Schema, path[1:], value)}
	case "*":
		return map[string]any{"a": at(*schema.AdditionalProperties.Schema, path[1:], value)}
	}
	object := sample(schema).(map[string]any) //nolint:forcetypeassert // the path has the fields of an object
	object[path[0]] = at(schema.Properties[path[0]], path[1:], value)
	return object
}

// sample returns a small value that the schema allows.
func sample(schema schemaProps) any {
	switch {
	case len(schema.Enum) > 0:
		return json.RawMessage(schema.Enum[0].Raw)
	case schema.XIntOrString:
		return 1
	case schema.Format == "date-time":
		return "2026-01-02T03:04:05.000006Z"
	}
	switch schema.Type {
	case "string":
		for _, text := range []string{"a", "/a", "http://a", strings.Repeat("a", int(ptr.Deref(schema.MinLength, 0)))} {
			if matches, err := regexp.MatchString(schema.Pattern, text); err == nil && matches && len(text) >= int(ptr.Deref(schema.MinLength, 0)) {
				return text
			}
		}
		return "A"
	case "integer", "number":
		return minimum(schema)
	case "array":
		list := []any{}
		for range ptr.Deref(schema.MinItems, 0) {
			list = append(list, sample(*schema.Items.Schema))
		}
		return list
	}
	object := map[string]any{}
	for _, name := range schema.Required {
		if name != "type" || len(schema.Properties[name].Enum) == 0 { // surroundings sets the type of a union
			object[name] = sample(schema.Properties[name])
		}
	}
	return object
}

func minimum(schema schemaProps) int64 { return int64(ptr.Deref(schema.Minimum, 1)) }

// text returns a value in JSON.
func text(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}
