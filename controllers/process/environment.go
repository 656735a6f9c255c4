// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// environmentRetry is how long to wait before resolving a missing reference again. Secrets and ConfigMaps are not watched, because a watch would put all
// of them into the memory of the manager.
const environmentRetry = 10 * time.Second

// variable is one environment variable before references such as $(NAME) in its value are expanded.
type variable struct {
	name, value string
	// literal reports that references in the value are not expanded.
	literal bool
	// secret reports that the value comes from a Secret and must not reach a command line.
	secret bool
	// unset reports that the variable refers to an optional key that does not exist.
	unset bool
}

// maxString is the maximum length in bytes of an argument, and of a variable with its name. Linux executes no program with a longer one (MAX_ARG_STRLEN, which
// includes a zero byte). maxStrings is the maximum length of all arguments and variables together, with stringOverhead bytes for each. It is 128 KiB less than
// what Linux usually permits, because a program also inherits variables of the manager.
const (
	maxString      = 128<<10 - 1
	maxStrings     = 2<<20 - 128<<10
	stringOverhead = 9
)

// environment is the expanded environment of a process.
type environment struct {
	values map[string]string
	secret map[string]bool
	// list contains NAME=value for each variable: first the variables of the kind, then those of the spec in their order.
	list []string
	// size is the length of the list in bytes, with overhead. tooLong is why no program can be executed with these variables; nil if it can.
	size    int
	tooLong *lifecycle.Blocked
}

// resolver reads the values of variables. It reads each Secret and ConfigMap once.
type resolver struct {
	reader    client.Reader
	namespace string
	data      map[string]map[string]string
}

// resolve reads the values of the environment. A missing reference blocks the start; the returned Blocked names it.
func (r *Reconciler) resolve(ctx context.Context, v *scope) ([]variable, *lifecycle.Blocked, error) {
	reads := &resolver{reader: r.Reader, namespace: v.object.GetNamespace(), data: map[string]map[string]string{}}
	env := v.spec().Process.Env
	variables, missing, err := reads.sources(ctx, v.spec().Process.EnvFrom)
	if err != nil {
		return nil, nil, err
	}
	if missing != "" {
		return nil, invalidEnvironment("spec.process.envFrom: %s.", missing), nil
	}
	for i := range env {
		resolved, missing, err := reads.variable(ctx, &env[i])
		if err != nil {
			return nil, nil, err
		}
		if missing == "" && strings.ContainsRune(resolved.value, 0) {
			missing = "the value contains a zero byte; remove it"
		}
		if missing != "" {
			return nil, invalidEnvironment("Environment variable %s: %s.", env[i].Name, missing), nil
		}
		if !resolved.unset {
			variables = override(variables, resolved)
		}
	}
	return variables, nil, nil
}

func invalidEnvironment(format string, args ...any) *lifecycle.Blocked {
	return &lifecycle.Blocked{
		Reason:  v1alpha1.ReasonInvalidEnvironment,
		Message: conditions.Truncate(fmt.Sprintf(format, args...), conditions.MaxMessage),
		Retry:   environmentRetry,
	}
}

// variable resolves one variable. missing describes a missing reference and never contains a value.
func (r *resolver) variable(ctx context.Context, env *v1alpha1.EnvVar) (v variable, missing string, err error) {
	v = variable{name: env.Name, value: env.Value}
	if env.ValueFrom == nil {
		return v, "", nil
	}
	v.literal = true
	switch from := env.ValueFrom; {
	case from.SecretKeyRef != nil:
		v.secret = true
		v.value, v.unset, missing, err = r.key(ctx, "Secret", *from.SecretKeyRef)
	case from.ConfigMapKeyRef != nil:
		v.value, v.unset, missing, err = r.key(ctx, "ConfigMap", *from.ConfigMapKeyRef)
	default:
		missing = "valueFrom must name a Secret or a ConfigMap"
	}
	return v, missing, err
}

// maxSourceVariables is the maximum number of variables from all sources of an object, and maxVariableName the maximum length of their names, as in env.
const maxSourceVariables, maxVariableName = 1000, 256

// sources returns the variables of envFrom, in the order of the sources and of their keys.
func (r *resolver) sources(ctx context.Context, sources []v1alpha1.EnvFromSource) (variables []variable, missing string, err error) {
	for i := range sources {
		kind, ref := "ConfigMap", sources[i].ConfigMapRef
		if sources[i].SecretRef != nil {
			kind, ref = "Secret", sources[i].SecretRef
		}
		if ref == nil {
			return nil, "each source must name a Secret or a ConfigMap", nil
		}
		data, missing, err := r.object(ctx, kind, ref.Name, ref.Presence == v1alpha1.PresenceOptional)
		if missing != "" || err != nil {
			return nil, missing, err
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			v := variable{name: sources[i].Prefix + key, value: data[key], literal: true, secret: kind == "Secret"}
			switch {
			case len(v.name) > maxVariableName || len(validation.IsEnvVarName(v.name)) > 0: // the backends refuse variables of the loader, such as LD_PRELOAD
				return nil, fmt.Sprintf("the key %s of %s %s cannot become an environment variable; remove it, or select the other keys with env", key, kind, ref.Name), nil
			case strings.ContainsRune(v.value, 0):
				return nil, fmt.Sprintf("the value of the key %s of %s %s contains a zero byte; remove it", key, kind, ref.Name), nil
			}
			if variables = override(variables, v); len(variables) > maxSourceVariables {
				return nil, fmt.Sprintf("the sources have more than %d keys; select the keys with env", maxSourceVariables), nil
			}
		}
	}
	return variables, "", nil
}

// override removes an earlier variable with the same name and appends v, so that v can refer to all variables before it.
func override(variables []variable, v variable) []variable {
	return append(slices.DeleteFunc(variables, func(earlier variable) bool { return earlier.name == v.name }), v)
}

// key reads one key of a Secret or a ConfigMap. unset reports that an optional reference does not exist.
func (r *resolver) key(ctx context.Context, kind string, ref v1alpha1.KeyRef) (value string, unset bool, missing string, err error) {
	optional := ref.Presence == v1alpha1.PresenceOptional
	data, missing, err := r.object(ctx, kind, ref.Name, optional)
	if missing != "" || err != nil {
		return "", false, missing, err
	}
	value, there := data[ref.Key]
	if !there && !optional {
		return "", false, fmt.Sprintf("%s %s has no key %s; add it", kind, ref.Name, ref.Key), nil
	}
	return value, !there, "", nil
}

// object reads the data of a Secret or a ConfigMap. The data of an optional object that does not exist are empty.
func (r *resolver) object(ctx context.Context, kind, name string, optional bool) (data map[string]string, missing string, err error) {
	data, read := r.data[kind+"/"+name]
	if read {
		return data, "", nil
	}
	data, err = r.read(ctx, kind, name)
	switch {
	case apierrors.IsNotFound(err) && optional:
		return nil, "", nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("%s %s does not exist in namespace %s; create it", kind, name, r.namespace), nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Sprintf("the manager has no permission to read %s %s in namespace %s; bind its service account to the ClusterRole berth-manager-environment there", kind, name, r.namespace), nil
	case err != nil:
		return nil, "", fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	r.data[kind+"/"+name] = data
	return data, "", nil
}

func (r *resolver) read(ctx context.Context, kind, name string) (map[string]string, error) {
	var configMap corev1.ConfigMap
	var secret corev1.Secret
	var object client.Object = &secret
	if kind == "ConfigMap" {
		object = &configMap
	}
	if err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, object); err != nil {
		return nil, err
	}
	data := map[string]string{}
	maps.Copy(data, configMap.Data)
	for _, binary := range []map[string][]byte{configMap.BinaryData, secret.Data} {
		for key, value := range binary {
			data[key] = string(value)
		}
	}
	return data, nil
}

// expandEnvironment expands references in the values. Each value may refer only to variables that precede it. The variables of the kind come first, and the
// spec cannot override them, because the program must receive the port that was allocated to its object.
func expandEnvironment(variables []variable, ofKind map[string]string) environment {
	env := environment{values: maps.Clone(ofKind), secret: map[string]bool{}}
	if env.values == nil {
		env.values = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(ofKind)) {
		env.add(name, ofKind[name], false)
	}
	for _, v := range variables {
		if _, taken := ofKind[v.name]; taken {
			continue
		}
		value, secret := v.value, v.secret
		if !v.literal {
			var from bool
			value, from = env.expand(v.value)
			secret = secret || from
		}
		env.add(v.name, value, secret)
	}
	return env
}

// add adds an expanded variable, unless the environment is or becomes too long.
func (e *environment) add(name, value string, secret bool) {
	if e.tooLong != nil {
		return
	}
	entry := name + "=" + value
	if e.size += len(entry) + stringOverhead; len(entry) > maxString {
		e.tooLong = invalidEnvironment("Environment variable %s: the variable and its name have more than %d bytes. Shorten the value, or let the program read it from a file.", name, maxString)
	} else if e.size > maxStrings {
		e.tooLong = invalidEnvironment("Environment variable %s: this variable and the ones before it have more than %d bytes together. Remove variables, or let the program read values from files.", name, maxStrings)
	}
	if e.tooLong != nil {
		return
	}
	e.values[name], e.secret[name] = value, secret
	e.list = append(e.list, entry)
}

// expand expands references in one text and reports whether the result contains a value from a Secret.
func (e *environment) expand(text string) (expanded string, secret bool) {
	expanded = expand(text, func(name string) (string, bool) {
		value, known := e.values[name]
		secret = secret || known && e.secret[name]
		return value, known
	})
	return expanded, secret
}

// command expands argv, which is the value of a field. It rejects values from a Secret, because every user of a machine can read its command lines, and rejects arguments and variables with
// which no program can be executed.
func (e *environment) command(field string, argv []string) ([]string, *lifecycle.Blocked) {
	if e.tooLong != nil {
		return nil, e.tooLong
	}
	expanded, size := make([]string, len(argv)), e.size
	for i, word := range argv {
		text, secret := e.expand(word)
		if secret {
			return nil, invalidEnvironment("The value of %s[%d] refers to a variable from a Secret, and all users can read command lines. "+
				"Let the program read the variable from its environment.", field, i)
		}
		if strings.ContainsRune(text, 0) {
			return nil, invalidEnvironment("The value of %s[%d] contains a zero byte. Remove it.", field, i)
		}
		if size += len(text) + stringOverhead; len(text) > maxString || size > maxStrings {
			return nil, invalidEnvironment("The value of %s[%d] is too long: an argument has at most %d bytes, and all arguments and variables at most %d bytes together. "+
				"Let the program read the value from a file.", field, i, maxString, maxStrings)
		}
		expanded[i] = text
	}
	return expanded, nil
}
