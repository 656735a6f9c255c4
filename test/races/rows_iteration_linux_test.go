// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var _ = row("R03", "paginated lists and clean-up while objects are created and deleted: no error, nothing skipped or handled twice", func(ctx context.Context) {
	const stay, go1, turns, readers = 12, 6, 3, 3
	var lasting []string
	for i := range stay {
		o := newInstance(fmt.Sprintf("m-stays-%d", i))
		o.Spec.State = v1alpha1.StateStopped
		create(ctx, o)
		lasting = append(lasting, o.Name)
	}
	done := make(chan struct{})
	var reading sync.WaitGroup
	complaints := make(chan error, readers)
	for range readers {
		reading.Go(func() {
			for {
				if err := listInPages(ctx, lasting); err != nil {
					complaints <- err
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	inParallel(go1, func(i int) error {
		name := fmt.Sprintf("a-goes-%d", i) // the name sorts before those of all objects that stay
		for range turns {
			o := newInstance(name)
			o.Spec.TTLSecondsAfterStopped = ptr.To[int32](0)
			if err := k8s.Create(ctx, o); err != nil {
				return err
			}
			if err := pollUntil(ctx, func() (bool, error) {
				now, err := get(ctx, o)
				return err == nil && isRunning(now), err
			}); err != nil {
				return fmt.Errorf("%s is not ready: %w", name, err)
			}
			if err := patchFormatted(ctx, o, stopPatch); err != nil {
				return err
			}
			if err := pollUntil(ctx, func() (bool, error) {
				_, err := get(ctx, o)
				return client.IgnoreNotFound(err) == nil && err != nil, client.IgnoreNotFound(err)
			}); err != nil {
				return fmt.Errorf("%s is not cleaned up: %w", name, err)
			}
		}
		return nil
	})
	close(done)
	reading.Wait()
	close(complaints)
	for err := range complaints {
		Expect(err).NotTo(HaveOccurred())
	}
	for _, name := range lasting {
		Expect(mustGet(ctx, newInstance(name)).UID).NotTo(BeEmpty(), "objects that stay were not cleaned up")
	}
	for i := range go1 {
		Expect(len(notes("starts", fmt.Sprintf("a-goes-%d", i)))).To(BeNumerically("<=", turns), "each object was started once for each time that it existed")
	}
})

// listInPages lists all Instances in small pages; kubectl does the same with larger pages. It checks that the list contains exactly one entry for each
// Instance that stays.
func listInPages(ctx context.Context, lasting []string) error {
	seen := map[string]int{}
	for next := ""; ; {
		var page v1alpha1.InstanceList
		if err := k8s.List(ctx, &page, client.InNamespace(env.namespace), client.Limit(4), client.Continue(next)); err != nil {
			return fmt.Errorf("a list failed: %w", err)
		}
		for i := range page.Items {
			if strings.HasPrefix(page.Items[i].Name, "m-stays-") {
				seen[page.Items[i].Name]++
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	for _, name := range lasting {
		if seen[name] != 1 {
			return fmt.Errorf("%s must be seen exactly once, and was seen %d times", name, seen[name])
		}
	}
	return nil
}
