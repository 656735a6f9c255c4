// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// blockingReader is a reader whose lists block until the test releases them.
type blockingReader struct {
	client.Reader
	lists  atomic.Int32
	waits  chan struct{}
	passes chan error
}

func (r *blockingReader) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	n := r.lists.Add(1)
	r.waits <- struct{}{}
	err := cmp.Or(<-r.passes, ctx.Err())
	list.(*v1alpha1.DevServerList).Items = make([]v1alpha1.DevServer, n)
	return err
}

func TestListCoalescer_SharesListsBegunAfterCall(t *testing.T) {
	g := NewWithT(t)
	var e listCoalescer
	reader := &blockingReader{waits: make(chan struct{}), passes: make(chan error)}
	var asking sync.WaitGroup
	ask := func(n int, expect func(*v1alpha1.DevServerList, error)) {
		for range n {
			asking.Go(func() { expect(e.read(t.Context(), reader)) })
		}
	}
	ask(1, func(list *v1alpha1.DevServerList, err error) {
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list.Items).To(HaveLen(1))
	})
	g.Eventually(reader.waits).WithTimeout(time.Minute).Should(Receive())
	// The first list has already begun and may miss later changes, so it must not serve these calls.
	ask(20, func(list *v1alpha1.DevServerList, err error) {
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(list.Items)).To(BeNumerically(">", 1), "the list began before the call")
	})
	// This caller leaves a call that waits for the first list, so at least one list follows it.
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(e.read(cancelled, reader)).Error().To(MatchError(context.Canceled))
	done := make(chan struct{})
	go func() {
		defer close(done)
		asking.Wait()
	}()
	reader.passes <- nil
	for over := false; !over; {
		select {
		case <-reader.waits:
			reader.passes <- nil
		case <-done:
			over = true
		}
	}
	g.Expect(reader.lists.Load()).To(BeNumerically("<=", 21))

	ask(1, func(_ *v1alpha1.DevServerList, err error) { g.Expect(err).To(MatchError(ContainSubstring("away"))) })
	<-reader.waits
	reader.passes <- errors.New("the API server is away")
	asking.Wait()
}

func TestListCoalescer_StopsWaitingOnCancel(t *testing.T) {
	g := NewWithT(t)
	var e listCoalescer
	reader := &blockingReader{waits: make(chan struct{}), passes: make(chan error)}
	var asking sync.WaitGroup
	asking.Go(func() { _, _ = e.read(t.Context(), reader) })
	<-reader.waits
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.read(ctx, reader)
	g.Expect(err).To(MatchError(context.Canceled))
	reader.passes <- nil
	<-reader.waits // the list that the cancelled caller requested
	reader.passes <- nil
	asking.Wait()
}

func TestListCoalescer_ListOutlivesCallerThatStartedIt(t *testing.T) {
	g := NewWithT(t)
	var e listCoalescer
	reader := &blockingReader{waits: make(chan struct{}), passes: make(chan error)}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	e.reading.Lock() // as during an earlier list
	g.Expect(e.read(cancelled, reader)).Error().To(MatchError(context.Canceled))
	shared := e.next.DoChan(nextList, nil) // as another caller does, whose context is alive
	e.reading.Unlock()
	<-reader.waits
	reader.passes <- nil
	g.Expect((<-shared).Err).NotTo(HaveOccurred())
}
