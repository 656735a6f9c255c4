// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// mcpOwner is the field owner of the objects that the tool apply writes. It differs from the one of the commands, so that a conflict names its cause.
const mcpOwner = "berth-mcp"

// maxManifest is the maximum size of a manifest in the input of the tool apply, in bytes.
const maxManifest = 256 << 10

type applyInput struct {
	Manifest   string            `json:"manifest,omitempty" jsonschema:"YAML of Berth objects, instead of the fields below"`
	Name       string            `json:"name,omitempty" jsonschema:"KIND/NAME: devserver, instance or languageserver"`
	Command    []string          `json:"command,omitempty" jsonschema:"program and arguments"`
	WorkingDir string            `json:"workingDir,omitempty" jsonschema:"absolute path; for a languageserver the workspace"`
	Env        map[string]string `json:"env,omitempty"`
	Language   string            `json:"language,omitempty" jsonschema:"languageserver: go, typescript, python, ..."`
	DryRun     bool              `json:"dryRun,omitempty"`
	Force      bool              `json:"force,omitempty" jsonschema:"overwrite fields that others set"`
	waiting
}

type applyOutput struct {
	Results []applyResult `json:"results"`
}

type applyResult struct {
	objectSummary
	Result string `json:"result"` // created, changed or unchanged
}

func (t *toolContext) apply(ctx context.Context, call *mcp.CallToolRequest, input applyInput) (applyOutput, error) {
	objects, err := input.objects(t.to.client)
	if err != nil {
		return applyOutput{}, err
	}
	for _, object := range objects {
		if err := t.admit(object); err != nil {
			return applyOutput{}, err
		}
	}
	output := applyOutput{Results: []applyResult{}}
	for _, object := range objects {
		result, err := t.applyOne(ctx, object, input.DryRun, input.Force)
		if err != nil {
			return output, err
		}
		output.Results = append(output.Results, result)
	}
	if !input.Wait || input.DryRun {
		return output, nil
	}
	for i := range output.Results {
		ref, err := parseReference(output.Results[i].Name)
		if err != nil || ref.kind.once {
			continue // the kind has no process that becomes ready
		}
		object, err := t.to.get(ctx, ref)
		if err != nil {
			return output, err
		}
		if object.GetProcessSpec().State == v1alpha1.StateStopped {
			continue
		}
		if output.Results[i].objectSummary, err = t.settle(ctx, &target{call, ref, object}, input.waiting); err != nil {
			return output, err
		}
	}
	return output, nil
}

// objects returns the objects that the input describes.
func (i *applyInput) objects(api client.Client) ([]*unstructured.Unstructured, error) {
	switch {
	case i.Manifest != "" && i.Name != "":
		return nil, errors.New("set either manifest or name, not both")
	case i.Manifest == "" && i.Name == "":
		return nil, errors.New("set manifest, or name and command")
	case i.Name != "":
		object, err := i.fromFields(api)
		return []*unstructured.Unstructured{object}, err
	case len(i.Manifest) > maxManifest:
		return nil, fmt.Errorf("the manifest has %d bytes, but at most %d are allowed: apply the objects one by one", len(i.Manifest), maxManifest)
	}
	manifests, err := parseManifests("manifest", []byte(i.Manifest))
	if err != nil {
		return nil, err
	}
	if len(manifests) == 0 {
		return nil, errors.New("the manifest contains no object")
	}
	var objects []*unstructured.Unstructured
	for _, m := range manifests {
		objects = append(objects, m.object)
	}
	return objects, nil
}

// fromFields returns the object that the fields of the input describe.
func (i *applyInput) fromFields(api client.Client) (*unstructured.Unstructured, error) {
	ref, err := parseReference(i.Name)
	switch {
	case err != nil:
		return nil, err
	case ref.kind.once:
		return nil, fmt.Errorf("%s: apply creates devservers, instances and languageservers from fields; use manifest for other kinds", ref)
	case len(i.Command) == 0:
		return nil, fmt.Errorf("%s: command is required, for example [\"npm\", \"run\", \"dev\"]", ref)
	}
	template := map[string]any{}
	_ = unstructured.SetNestedStringSlice(template, i.Command, "command") // fails only for a path below another value
	if i.WorkingDir != "" {
		template["workingDir"] = i.WorkingDir
	}
	if len(i.Env) > 0 {
		var env []any
		for _, name := range slices.Sorted(maps.Keys(i.Env)) {
			env = append(env, map[string]any{"name": name, "value": i.Env[name]})
		}
		template["env"] = env
	}
	spec := map[string]any{"process": template}
	if ref.kind.singular == "languageserver" {
		if i.Language == "" || i.WorkingDir == "" {
			return nil, fmt.Errorf("%s: language and workingDir are required", ref)
		}
		spec["language"] = i.Language
		spec["workspace"] = map[string]any{"folders": []any{i.WorkingDir}}
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	gvk, err := api.GroupVersionKindFor(ref.kind.object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	object.SetGroupVersionKind(gvk)
	object.SetName(ref.name)
	return object, nil
}

// admit completes an object with the namespace and the session of the tools. It returns an error if the object is not one that the tools may write.
func (t *toolContext) admit(object *unstructured.Unstructured) error {
	name := strings.ToLower(object.GetKind()) + "/" + object.GetName()
	gvk := object.GroupVersionKind()
	switch {
	case gvk.Group != v1alpha1.GroupVersion.Group:
		return fmt.Errorf("%s: apply writes only objects of %s, not of %q", name, v1alpha1.GroupVersion.Group, object.GetAPIVersion())
	case object.GetNamespace() != "" && object.GetNamespace() != t.to.namespace:
		return fmt.Errorf("%s: this server writes only to namespace %q: omit metadata.namespace", name, t.to.namespace)
	}
	object.SetNamespace(t.to.namespace)
	if err := t.admitPlan(object); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t.session == "" {
		return nil
	}
	kind := kindNamed(t.kinds(), gvk.Kind)
	if kind == nil {
		return fmt.Errorf("%s: this server is limited to session %q, so apply writes only %s", name, t.session, kindList(t.kinds()))
	}
	switch session, _, err := unstructured.NestedString(object.Object, "spec", "session"); {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case session != "" && session != t.session:
		return fmt.Errorf("%s: spec.session is %q, but this server is limited to session %q: omit spec.session", name, session, t.session)
	}
	return unstructured.SetNestedField(object.Object, t.session, "spec", "session")
}

// admitPlan returns an error if an object is a plan whose spec approves phases, which these tools may not do.
func (t *toolContext) admitPlan(object *unstructured.Unstructured) error {
	if object.GetKind() != "Plan" || t.mayApprove {
		return nil
	}
	target, _, err := unstructured.NestedString(object.Object, "spec", "targetPhase")
	if err != nil {
		return err
	}
	// A plan that is reverted without a lower target phase continues without another approval.
	_, reverts, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "revert")
	if err != nil {
		return err
	}
	_, approves, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "approval")
	if err != nil {
		return err
	}
	if reverts || approves || target != "" && target != string(v1alpha1.PhaseStrategize) {
		return errApproval
	}
	return nil
}

// existing returns the object that an object to apply changes, or an empty object if there is none. It returns an error for an object of another session.
func (t *toolContext) existing(ctx context.Context, object *unstructured.Unstructured, name string) (*unstructured.Unstructured, error) {
	before := &unstructured.Unstructured{}
	before.SetGroupVersionKind(object.GroupVersionKind())
	err := t.to.client.Get(ctx, client.ObjectKeyFromObject(object), before)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if session, _, _ := unstructured.NestedString(before.Object, "spec", "session"); err == nil && t.session != "" && session != t.session {
		return nil, fmt.Errorf("%s exists and does not belong to session %q, to which this server is limited: use another name", name, t.session)
	}
	return before, nil
}

// explainApply adds a remedy to the error of an apply request. before is the object that the request was to change.
func (t *toolContext) explainApply(ctx context.Context, err error, before *unstructured.Unstructured, name string) error {
	if recreated := (errRecreated{}); errors.As(t.to.explainUID(ctx, err, before, before.GetUID(), name), &recreated) {
		return recreated
	}
	if apierrors.IsConflict(err) {
		return fmt.Errorf("apply %s: %w; to overwrite these fields, set force", name, err)
	}
	return fmt.Errorf("apply %s: %w", name, err)
}

// applyOne writes one object by server-side apply. In a dry run, the API server validates the object and does not store it.
func (t *toolContext) applyOne(ctx context.Context, object *unstructured.Unstructured, dryRun, force bool) (applyResult, error) {
	name := strings.ToLower(object.GetKind()) + "/" + object.GetName()
	before, err := t.existing(ctx, object, name)
	if err != nil {
		return applyResult{}, err
	}
	result := "created"
	if before.GetResourceVersion() != "" {
		result = "changed"
		object.SetUID(before.GetUID()) // the API server refuses the change of an object that was recreated meanwhile
	}
	opts := []client.ApplyOption{client.FieldOwner(mcpOwner)}
	if dryRun {
		opts = append(opts, client.DryRunAll)
	}
	if force {
		opts = append(opts, client.ForceOwnership)
	}
	err = t.to.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), opts...)
	if err != nil {
		return applyResult{}, t.explainApply(ctx, err, before, name)
	}
	if result == "changed" && equality.Semantic.DeepEqual(before.Object["spec"], object.Object["spec"]) &&
		equality.Semantic.DeepEqual(before.GetLabels(), object.GetLabels()) && equality.Semantic.DeepEqual(before.GetAnnotations(), object.GetAnnotations()) {
		result = "unchanged"
	}
	summary := objectSummary{Name: name, Ready: "Unknown", Reason: v1alpha1.ReasonPending}
	if kind := kindNamed(shownKinds, object.GetKind()); kind != nil && !dryRun {
		shown, err := t.to.read(ctx, reference{kind: kind, name: object.GetName()})
		if err != nil {
			return applyResult{}, err
		}
		summary = summarize(rowOf(shown))
	}
	return applyResult{summary, result}, nil
}
