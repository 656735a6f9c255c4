// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

const (
	clients      = 6
	opsPerClient = 2
	slots        = 12 // half DevServers, half Instances
	namespace    = "default"
	requestTime  = 5 * time.Second

	envLife     = "CHAOS_LIFE"
	envRevision = "CHAOS_REVISION"
)

// user is a client that changes objects at random.
type user struct {
	api     client.Client
	ledger  *ledger
	journal *journal
	program string // path of the workload
	dir     string // value of CHAOS_DIR
	random  *rand.Rand
	name    string // unique; the first part of every word
	serial  int
}

// uniqueWord returns a text that no other call of any client returns.
func (u *user) uniqueWord() string {
	u.serial++
	return u.name + "-" + strconv.Itoa(u.serial)
}

func objectName(slot int) string {
	if slot < slots/2 {
		return "dev" + strconv.Itoa(slot)
	}
	return "inst" + strconv.Itoa(slot-slots/2)
}

// emptyObject returns an empty object with this name. The prefix of the name determines the kind of the object.
func emptyObject(name string) process.Object {
	var object process.Object = &v1alpha1.Instance{}
	if strings.HasPrefix(name, "dev") {
		object = &v1alpha1.DevServer{}
	}
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// changeRandomObject makes one random change to one random object.
func (u *user) changeRandomObject(ctx context.Context) error {
	name := objectName(u.random.IntN(slots))
	object := emptyObject(name)
	err := u.retryUntilAnswered(ctx, func(ctx context.Context) error { return u.api.Get(ctx, client.ObjectKeyFromObject(object), object) })
	if apierrors.IsNotFound(err) {
		return u.create(ctx, name)
	}
	if err != nil {
		return err
	}
	switch n := u.random.IntN(100); {
	case n < 27:
		return u.merge(ctx, "restart", object, `{"spec":{"restartToken":%q}}`, u.uniqueWord())
	case n < 47:
		return u.edit(ctx, object)
	case n < 62:
		return u.merge(ctx, "stop", object, `{"spec":{"state":%q}}`, v1alpha1.StateStopped)
	case n < 78:
		return u.merge(ctx, "start", object, `{"spec":{"state":%q}}`, v1alpha1.StateRunning)
	case n < 83:
		return u.merge(ctx, "reset", object, `{"spec":{"resetToken":%q}}`, u.uniqueWord())
	default:
		return u.delete(ctx, object)
	}
}

// retryUntilAnswered calls the function do until the API server answers, because the API server may have been killed.
func (u *user) retryUntilAnswered(ctx context.Context, do func(context.Context) error) error {
	var answer error
	err := eventually(ctx, patience, 100*time.Millisecond, func() error {
		ctx, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		answer = do(ctx)
		if isOutcomeUnknown(answer) {
			return answer
		}
		return nil
	})
	if err != nil {
		return err
	}
	return answer
}

// isOutcomeUnknown reports whether err leaves open that the request took effect: the API server sent no response, or a response that does not show whether it
// carried out the request.
func isOutcomeUnknown(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	// These codes also come from an API server that is starting and has not loaded the kinds and the permissions yet.
	return code >= 500 || code == 429 || code == 403 || code == 401 || apierrors.IsTimeout(err) ||
		(code == 404 && !strings.Contains(err.Error(), "\" not found"))
}

var behaviors = []string{"setsid", "daemon", "stubborn", "flood", "forks", "stubborn-descendant"}

func (u *user) create(ctx context.Context, name string) error {
	life := u.uniqueWord()
	object := emptyObject(name)
	spec := object.GetProcessSpec()
	words := []string{u.program, "leader"}
	spec.RestartPolicy = v1alpha1.RestartAlways
	once := strings.HasPrefix(name, "inst") && u.random.IntN(8) == 0
	if once {
		words = append(words, "exits")
		spec.RestartPolicy = v1alpha1.RestartOnFailure
	}
	for range u.random.IntN(3) {
		if habit := behaviors[u.random.IntN(len(behaviors))]; !strings.HasPrefix(habit, "stubborn") || u.random.IntN(2) == 0 {
			words = append([]string{words[0], words[1], habit}, words[2:]...) // insert behaviors before exits, because exits ends the program
		}
	}
	spec.Process.Command = words
	spec.Process.WorkingDir = "/"
	spec.Process.Env = []v1alpha1.EnvVar{
		{Name: "CHAOS_DIR", Value: u.dir}, {Name: "CHAOS_NAME", Value: name}, {Name: envLife, Value: life}, {Name: envRevision, Value: life},
	}
	spec.Process.Stop.GracePeriodSeconds = ptr.To(int32(u.random.IntN(3) / 2))
	spec.Backoff = v1alpha1.BackoffPolicy{InitialSeconds: ptr.To(int32(u.random.IntN(5) / 4)), MaxSeconds: ptr.To(int32(1))}
	spec.Breaker = v1alpha1.BreakerPolicy{FailureThreshold: ptr.To(int32(64)), WindowSeconds: ptr.To(int32(1)), CoolDownSeconds: ptr.To(int32(1))}

	u.ledger.intend(life)
	wanted := object.DeepCopyObject().(process.Object)
	err := u.retryUntilAnswered(ctx, func(ctx context.Context) error {
		object = wanted.DeepCopyObject().(process.Object)
		return u.api.Create(ctx, object)
	})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // another client created the object, or an earlier attempt of this client did and the response was lost; the ledger has the word already
	case err != nil:
		return fmt.Errorf("create %s: %w", name, err)
	}
	u.ledger.created(object)
	u.journal.record("create", "%s life %s %v uid %s", name, life, words[2:], object.GetUID())
	return nil
}

// merge changes one field with a merge patch, so that it cannot conflict with changes of other clients.
func (u *user) merge(ctx context.Context, what string, object process.Object, format string, value any) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, value))
	err := u.retryUntilAnswered(ctx, func(ctx context.Context) error { return u.api.Patch(ctx, object, patch) })
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, object.GetName(), err)
	}
	u.journal.record(what, "%s %s generation %d", object.GetName(), value, object.GetGeneration())
	return nil
}

// edit changes the environment as kubectl edit does: it reads the object, changes it, writes it, and retries on conflict.
func (u *user) edit(ctx context.Context, object process.Object) error {
	revision := u.uniqueWord()
	for range 20 {
		env := object.GetProcessSpec().Process.Env
		for i := range env {
			if env[i].Name == envRevision {
				env[i].Value = revision
			}
		}
		err := u.retryUntilAnswered(ctx, func(ctx context.Context) error { return u.api.Update(ctx, object) })
		if apierrors.IsConflict(err) {
			err = u.retryUntilAnswered(ctx, func(ctx context.Context) error { return u.api.Get(ctx, client.ObjectKeyFromObject(object), object) })
			if err == nil {
				continue
			}
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("edit %s: %w", object.GetName(), err)
		}
		u.journal.record("edit", "%s revision %s generation %d", object.GetName(), revision, object.GetGeneration())
		return nil
	}
	return nil
}

func (u *user) delete(ctx context.Context, object process.Object) error {
	u.ledger.deleting(object.GetUID())
	err := u.retryUntilAnswered(ctx, func(ctx context.Context) error {
		return u.api.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", object.GetName(), err)
	}
	u.ledger.deleted(object.GetUID())
	u.journal.record("delete", "%s uid %s", object.GetName(), object.GetUID())
	return nil
}

// lifeWord returns the unique word with which an object was created.
func lifeWord(object process.Object) string { return envValue(object, envLife) }

func envValue(object process.Object, name string) string {
	for _, env := range object.GetProcessSpec().Process.Env {
		if env.Name == name {
			return env.Value
		}
	}
	return ""
}
