// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package consistency

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func configMap(uid types.UID, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: uid, ResourceVersion: version}}
}

func TestWrites_RecognizeAnOlderRead(t *testing.T) {
	g := NewWithT(t)
	var writes Writes
	g.Expect(writes.Behind(configMap("u", "9"))).To(BeFalse(), "nothing was written")
	writes.Record(configMap("u", "10"))
	g.Expect(writes.Behind(configMap("u", "9"))).To(BeTrue(), "9 is lower than 10, although not as text")
	g.Expect(writes.Behind(configMap("u", "10"))).To(BeFalse())
	g.Expect(writes.Behind(configMap("u", "11"))).To(BeFalse(), "another client has written")
	g.Expect(writes.Behind(configMap("other", "9"))).To(BeFalse(), "an object of the same name with another UID")
	g.Expect(writes.IsLast(configMap("u", "10"))).To(BeTrue())
	g.Expect(writes.IsLast(configMap("u", "11"))).To(BeFalse())
	writes.Forget(types.NamespacedName{Namespace: "a", Name: "b"})
	g.Expect(writes.Behind(configMap("u", "9"))).To(BeFalse())
	g.Expect(writes.IsLast(configMap("u", "10"))).To(BeFalse())
}

func TestStaleOr_KeepsOtherErrors(t *testing.T) {
	g := NewWithT(t)
	resource := corev1.Resource("configmaps")
	g.Expect(StaleOr(apierrors.NewConflict(resource, "b", errors.New("changed")), "write")).To(MatchError(ErrStale))
	g.Expect(StaleOr(apierrors.NewNotFound(resource, "b"), "write")).To(MatchError(ErrStale))
	failed := errors.New("connection refused")
	g.Expect(StaleOr(failed, "write the status")).To(MatchError("write the status: connection refused"))
	g.Expect(StaleOr(failed, "write the status")).To(MatchError(failed))
}

func TestConfirm_ComparesUIDAndVersion(t *testing.T) {
	g := NewWithT(t)
	stored := configMap("u", "5")
	reader := fake.NewClientBuilder().WithObjects(stored).Build()
	g.Expect(reader.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
	confirm := func(object client.Object) error { return Confirm(t.Context(), reader, object, &corev1.ConfigMap{}) }
	g.Expect(confirm(stored)).To(Succeed())
	g.Expect(confirm(configMap("u", "4"))).To(MatchError(ErrStale))
	g.Expect(confirm(configMap("other", stored.ResourceVersion))).To(MatchError(ErrStale))
	gone := configMap("u", "5")
	gone.Name = "c"
	g.Expect(confirm(gone)).To(MatchError(ErrStale))
}

func TestRemoveFinalizers_AcceptsThatTheObjectIsGone(t *testing.T) {
	g := NewWithT(t)
	stored := configMap("u", "")
	stored.Finalizers = []string{"berth.dev/a", "berth.dev/b", "berth.dev/c"}
	api := fake.NewClientBuilder().WithObjects(stored).Build()
	object := &corev1.ConfigMap{}
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(stored), object)).To(Succeed())
	stale := object.DeepCopy()
	remove := func(object client.Object) error {
		return RemoveFinalizers(t.Context(), api, object, "remove the finalizers", "berth.dev/a", "berth.dev/b")
	}
	g.Expect(remove(object)).To(Succeed())
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
	g.Expect(stored.Finalizers).To(Equal([]string{"berth.dev/c"}))
	g.Expect(remove(stale)).To(MatchError(ErrStale))
	gone := stale.DeepCopy()
	gone.Name = "c"
	g.Expect(remove(gone)).To(Succeed())
}

func TestResult_RepeatsAfterStaleRead(t *testing.T) {
	g := NewWithT(t)
	result, err := Result("plans/a", StaleOr(ErrStale, "write"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(Equal(RetryAfter))
	failed := errors.New("connection refused")
	_, err = Result("plans/a", failed)
	g.Expect(err).To(MatchError("plans/a: connection refused"))
	g.Expect(err).To(MatchError(failed))
}
