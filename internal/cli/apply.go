// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/folder"
)

const (
	// applyOwner is the field owner of the objects that berth up and berth apply write.
	applyOwner = "berth-up"

	establishTimeout = time.Minute
)

func (a *app) applyCommand() *cobra.Command {
	flags := &connectionFlags{}
	var path string
	command := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or change objects from manifests",
		Long: "Apply applies the objects in a YAML or JSON file, or in all .yaml, .yml and .json files of a directory, by server-side apply. Objects without a namespace\n" +
			"are created in the namespace of the command.",
		Example: "  # Apply the objects that berth init has proposed\n" +
			"  berth apply -f berth.yaml",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{errors.New("-f is required"), command.UsageString()}
			}
			manifests, err := readManifests(path)
			if err != nil {
				return err
			}
			to, err := a.connect(flags)
			if err != nil {
				return err
			}
			say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
			return applyManifests(command.Context(), to.client, manifests, to.namespace, say)
		},
	}
	flags.add(command)
	command.Flags().StringVarP(&path, "filename", "f", "", "file or directory with manifests")
	return command
}

// poll calls the function try every 100 ms, until try succeeds or the context is done. In the latter case poll returns the context error joined with the last
// error of try.
func poll(ctx context.Context, try func() error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	return errors.Join(err, last)
}

func serverSideApply(ctx context.Context, api client.Client, object *unstructured.Unstructured) error {
	return api.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(applyOwner), client.ForceOwnership)
}

// manifest is one object of a manifest file.
type manifest struct {
	source string // file name and index of the object in it, for messages
	object *unstructured.Unstructured
}

// readManifests reads one file, or all .yaml, .yml and .json files directly in a folder. A file may contain several objects and lists.
func readManifests(path string) ([]manifest, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		files = nil
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		for _, entry := range entries {
			// Links are followed, because a mounted ConfigMap consists of links. A pipe or a device could block, so a user must name it with -f.
			file := filepath.Join(path, entry.Name())
			if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
				continue
			}
			switch info, err := os.Stat(file); {
			case err != nil:
				return nil, fmt.Errorf("read manifests: %w", err)
			case info.Mode().IsRegular():
				files = append(files, file)
			case !info.IsDir():
				return nil, fmt.Errorf("read manifests: %s is not a regular file", file)
			}
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s contains no .yaml, .yml or .json file", path)
		}
	}
	var all []manifest
	for _, file := range files {
		found, err := readManifestFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	// Namespaces and CustomResourceDefinitions come first, because the other objects may depend on them.
	slices.SortStableFunc(all, func(a, b manifest) int { return rank(a) - rank(b) })
	return all, nil
}

func rank(m manifest) int {
	switch m.object.GetKind() {
	case "Namespace", "CustomResourceDefinition":
		return 0
	default:
		return 1
	}
}

// maxManifestFile is the maximum size of a file with manifests, in bytes.
const maxManifestFile = 16 << 20

func readManifestFile(file string) ([]manifest, error) {
	opened, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	data, err := folder.Content(opened, maxManifestFile)
	if err := errors.Join(err, opened.Close()); err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return parseManifests(file, data)
}

// parseManifests parses YAML or JSON documents. The name of the file is used in messages.
func parseManifests(file string, data []byte) ([]manifest, error) {
	var found []manifest
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		source := fmt.Sprintf("%s, object %d", file, number)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if len(object.Object) == 0 {
			continue // the document contains only comments
		}
		if object.IsList() {
			err = object.EachListItem(func(item runtime.Object) error {
				found = append(found, manifest{source, item.(*unstructured.Unstructured)})
				return nil
			})
		} else {
			found = append(found, manifest{source, object})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		for _, m := range found {
			if m.object.GetKind() == "" || m.object.GetAPIVersion() == "" || m.object.GetName() == "" {
				return nil, fmt.Errorf("%s: apiVersion, kind and metadata.name are required", m.source)
			}
		}
	}
}

// applyManifests applies all manifests and calls say for each applied object. Objects without a namespace get the given one. It continues after an error and returns
// all errors joined.
func applyManifests(ctx context.Context, api client.Client, manifests []manifest, namespace string, say func(string, ...any)) error {
	var errs []error
	for _, m := range manifests {
		object := m.object.DeepCopy()
		name := strings.ToLower(object.GetKind()) + "/" + object.GetName()
		namespaced, err := api.IsObjectNamespaced(object)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", m.source, name, err))
			continue
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		if err := serverSideApply(ctx, api, object); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", m.source, name, err))
			continue
		}
		say("applied %s", name)
	}
	return errors.Join(errs...)
}

// awaitNamespace waits up to establishTimeout for a namespace that the API server creates itself some time after it is ready.
func awaitNamespace(ctx context.Context, api client.Reader, name string) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	err := poll(ctx, func() error {
		err := api.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			return fmt.Errorf("read namespace %s: %w", name, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for namespace %s: %w", name, err)
	}
	return nil
}
