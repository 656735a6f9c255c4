// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"sync"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = row("R01", "two discoveries at once: the result is the union, and every session has exactly one object", func(ctx context.Context) {
	const pairs = 20
	d := newSessionEnv(nil)
	defer d.end()
	var names []string
	for i := range pairs { // both names of a pair yield the same valid object name
		names = append(names, fmt.Sprintf("Agent_%d", i), fmt.Sprintf("agent-%d", i))
	}
	d.openSessions(names...)
	elsewhere := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "race-"}}
	Expect(k8s.Create(ctx, elsewhere)).To(Succeed())
	inParallel(2, func(i int) error {
		return k8s.Create(ctx, d.newDiscovery(env.namespace, fmt.Sprintf("at-once-%d", i), ""))
	})
	Expect(k8s.Create(ctx, d.newDiscovery(elsewhere.Name, "elsewhere", ""))).To(Succeed())
	for _, found := range []*v1alpha1.InstanceDiscovery{
		d.newDiscovery(env.namespace, "at-once-0", ""), d.newDiscovery(env.namespace, "at-once-1", ""), d.newDiscovery(elsewhere.Name, "elsewhere", ""),
	} {
		waitForDiscovery(ctx, found, "has found all sessions", func(t v1alpha1.DiscoveryTotals) bool { return t.Found == 2*pairs && t.Created+t.Known == 2*pairs })
	}
	objects := instancesIn(ctx, env.namespace, elsewhere.Name)
	owners := map[string]int{}
	for i := range objects {
		owners[objects[i].Spec.DisplayName]++
	}
	Expect(owners).To(HaveLen(2*pairs), "every session has an object")
	Expect(objects).To(HaveLen(2*pairs), "exactly one object for each session")
	for i := range objects {
		waitFor(ctx, &objects[i], "has adopted its session", func(o *v1alpha1.Instance) bool {
			return isTrue(o, v1alpha1.ConditionAdopted) && isRunning(o)
		})
	}
	marks := d.sessionMarks(ctx)
	for i := range objects {
		Expect(marks).To(HaveKeyWithValue(objects[i].Spec.DisplayName, string(objects[i].UID)))
	}
	deleteDiscovered(ctx, env.namespace, elsewhere.Name)
	Expect(workloadPIDs("")).To(HaveLen(2*pairs), "no process in a session has ended")
})

var _ = row("R02", "reads while discoveries run: every read returns complete objects", func(ctx context.Context) {
	d := newSessionEnv(nil)
	defer d.end()
	done := make(chan struct{})
	complaints := make(chan error, 3)
	var readers sync.WaitGroup
	for range cap(complaints) {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := checkObjectsComplete(ctx); err != nil {
					complaints <- err
					return
				}
			}
		})
	}
	found := d.newDiscovery(env.namespace, "agents", "")
	Expect(k8s.Create(ctx, found)).To(Succeed())
	for i := range 10 {
		d.openSessions(fmt.Sprintf("agent-%d", i))
		Expect(patchFormatted(ctx, found, `{"spec":{"refreshToken":"%d"}}`, i)).To(Succeed())
		want := int32(i + 1)
		waitForDiscovery(ctx, d.newDiscovery(env.namespace, "agents", ""), "has found the new session", func(t v1alpha1.DiscoveryTotals) bool { return t.Created == want })
	}
	close(done)
	readers.Wait()
	close(complaints)
	for err := range complaints {
		Expect(err).NotTo(HaveOccurred())
	}
	deleteDiscovered(ctx, env.namespace)
})

// checkObjectsComplete reads the objects that discoveries write, and checks that none of them is partially written.
func checkObjectsComplete(ctx context.Context) error {
	var discoveries v1alpha1.InstanceDiscoveryList
	var instances v1alpha1.InstanceList
	if err := k8s.List(ctx, &discoveries, client.InNamespace(env.namespace)); err != nil {
		return fmt.Errorf("a list failed: %w", err)
	}
	if err := k8s.List(ctx, &instances, client.InNamespace(env.namespace)); err != nil {
		return fmt.Errorf("a list failed: %w", err)
	}
	there := map[string]bool{}
	for i := range instances.Items {
		object := &instances.Items[i]
		there[object.Name] = true
		if object.Spec.DisplayName == "" || object.Labels[v1alpha1.LabelDiscoveredBy] == "" || len(object.Finalizers) == 0 && object.DeletionTimestamp == nil {
			return fmt.Errorf("a list shows a partially written Instance: %+v", object.ObjectMeta)
		}
	}
	for i := range discoveries.Items {
		status := &discoveries.Items[i].Status
		t := status.Totals
		are := 0
		for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
			if meta.IsStatusConditionTrue(status.Conditions, c) {
				are++
			}
		}
		if status.ObservedGeneration > 0 && are != 1 || int(t.Found) != len(status.Found) || t.Created+t.Known+t.Skipped != t.Found {
			return fmt.Errorf("a list shows a partially written discovery: %+v", status)
		}
		for _, entry := range status.Found {
			if entry.Outcome == v1alpha1.DiscoveryCreated && !there[entry.InstanceRef.Name] {
				return fmt.Errorf("a list shows a partially written discovery: it created %s, which does not exist", entry.InstanceRef.Name)
			}
		}
	}
	return nil
}

var _ = row("S01", "two creators of one name, a user and a discovery: the loser changes nothing", func(ctx context.Context) {
	d := newSessionEnv(nil)
	defer d.end()
	d.openSessions("work")
	found := d.newDiscovery(env.namespace, "agents", "")
	Expect(k8s.Create(ctx, found)).To(Succeed())
	waitForDiscovery(ctx, found, "has created an Instance", func(t v1alpha1.DiscoveryTotals) bool { return t.Created == 1 && t.Adopted == 1 })
	name := found.Status.Found[0].InstanceRef.Name
	session := workloadPIDs("work")
	for round := range 4 {
		deleteDiscovered(ctx, env.namespace)
		mine := newInstance(name)
		mine.Spec.Process.Command = workloadCommand("mine")
		mine.Spec.DisplayName = "mine"
		var lost bool
		if round == 0 { // in the first round, the user is first: the Instance exists before the discovery
			Expect(k8s.Create(ctx, mine)).To(Succeed())
			Expect(k8s.Create(ctx, d.newDiscovery(env.namespace, "agents", ""))).To(Succeed())
		} else {
			inParallel(2, func(i int) error {
				if i == 0 {
					return k8s.Create(ctx, d.newDiscovery(env.namespace, "agents", ""))
				}
				err := k8s.Create(ctx, mine)
				lost = apierrors.IsAlreadyExists(err)
				return client.IgnoreAlreadyExists(err)
			})
		}
		again := d.newDiscovery(env.namespace, "agents", "")
		waitForDiscovery(ctx, again, "has run", func(t v1alpha1.DiscoveryTotals) bool { return t.Found == 1 })
		objects := instancesIn(ctx, env.namespace)
		Expect(objects).To(HaveLen(1), "exactly one object has the name")
		if lost {
			Expect(objects[0].Spec.DisplayName).To(Equal("work"), "the loser changes nothing: the discovery was first")
			continue
		}
		Expect(objects[0].UID).To(Equal(mine.UID), "the loser changes nothing: the object is the user's")
		Expect(objects[0].Spec.DisplayName).To(Equal("mine"), "the loser changes nothing: the spec is the user's")
		Expect(again.Status.Found[0].Reason).To(Equal(v1alpha1.ReasonNameTaken))
		waitForRunning(ctx, mine, 1)
	}
	Expect(workloadPIDs("work")).To(Equal(session), "the session was not affected")
	deleteDiscovered(ctx, env.namespace)
})

var _ = row("S04", "a tmux session and a container with one name: neither gets the other's status", func(ctx context.Context) {
	d := newSessionEnv(startEngine(ctx))
	defer d.end()
	d.openSessions("claude", "codex")
	claude, codex := d.startContainer(ctx, "claude"), d.startContainer(ctx, "codex")
	found := d.newDiscovery(env.namespace, "agents", "")
	found.Spec.Sources = append(found.Spec.Sources, v1alpha1.DiscoverySource{Name: "docker", Type: v1alpha1.RuntimeDocker})
	Expect(k8s.Create(ctx, found)).To(Succeed())
	waitForDiscovery(ctx, found, "has found all four", func(t v1alpha1.DiscoveryTotals) bool { return t.Created == 4 && t.Adopted == 4 })
	session, boxed := instanceOf(ctx, v1alpha1.RuntimeTmux, "claude"), instanceOf(ctx, v1alpha1.RuntimeDocker, "claude")
	pid := session.Status.Process.PID
	Expect(session.Status.Process.ContainerID).To(BeEmpty())
	Expect(boxed.Status.Process.ContainerID).To(Equal(claude))

	d.removeContainer(ctx, claude)
	waitFor(ctx, boxed, "has ended with its container", func(o *v1alpha1.Instance) bool { return !isRunning(o) && o.Status.LastExit != nil })
	Expect(patchFormatted(ctx, session, `{"spec":{"resetToken":"look"}}`)).To(Succeed())
	Eventually(ctx, func() string { return mustGet(ctx, session).Status.ObservedResetToken }).Should(Equal("look"))
	Expect(readyCondition(mustGet(ctx, session))).To(Equal("True Running"), "the session does not have the status of the container")
	Expect(mustGet(ctx, session).Status.Process.PID).To(Equal(pid))

	session, boxed = instanceOf(ctx, v1alpha1.RuntimeTmux, "codex"), instanceOf(ctx, v1alpha1.RuntimeDocker, "codex")
	_, err := d.runTmux("kill-session", "-t", "=codex")
	Expect(err).NotTo(HaveOccurred())
	waitFor(ctx, session, "has ended with its session", func(o *v1alpha1.Instance) bool { return !isRunning(o) && o.Status.LastExit != nil })
	Expect(patchFormatted(ctx, boxed, `{"spec":{"resetToken":"look"}}`)).To(Succeed())
	Eventually(ctx, func() string { return mustGet(ctx, boxed).Status.ObservedResetToken }).Should(Equal("look"))
	Expect(readyCondition(mustGet(ctx, boxed))).To(Equal("True Running"), "the container does not have the status of the session")
	deleteDiscovered(ctx, env.namespace)
	d.removeContainer(ctx, codex)
})

var _ = row("S06", "claude-foo and claude-foobar: an operation on one never affects the other", func(ctx context.Context) {
	d := newSessionEnv(nil)
	defer d.end()
	d.openSessions("claude-foobar")
	longer := workloadPIDs("claude-foobar")
	missing := d.newAdoptingInstance("missing", "claude-foo")
	create(ctx, missing)
	Eventually(ctx, func() string { return readyCondition(mustGet(ctx, missing)) }).Should(Equal("False NothingToAdopt"), "only the exact name matches: there is no claude-foo")
	Expect(d.sessionMarks(ctx)).To(Equal(map[string]string{"claude-foobar": ""}), "only the exact name matches: claude-foobar has no owner")
	Expect(k8s.Delete(ctx, missing)).To(Succeed())
	waitForGone(ctx, missing)

	d.openSessions("claude-foo")
	found := d.newDiscovery(env.namespace, "agents", "claude-")
	Expect(k8s.Create(ctx, found)).To(Succeed())
	waitForDiscovery(ctx, found, "has found both", func(t v1alpha1.DiscoveryTotals) bool { return t.Created == 2 && t.Adopted == 2 })
	foo, foobar := instanceOf(ctx, v1alpha1.RuntimeTmux, "claude-foo"), instanceOf(ctx, v1alpha1.RuntimeTmux, "claude-foobar")
	Expect(d.sessionMarks(ctx)).To(Equal(map[string]string{"claude-foo": string(foo.UID), "claude-foobar": string(foobar.UID)}))
	Expect(patchFormatted(ctx, foo, `{"spec":{"state":"Stopped","process":{"stop":{"signal":"SIGHUP"}}}}`)).To(Succeed())
	waitForStopped(ctx, foo)
	Expect(workloadPIDs("claude-foobar")).To(Equal(longer), "only the exact name matches: claude-foobar was not stopped")
	Expect(readyCondition(mustGet(ctx, foobar))).To(Equal("True Running"))
	deleteDiscovered(ctx, env.namespace)
	Expect(workloadPIDs("claude-foobar")).To(Equal(longer))
})
