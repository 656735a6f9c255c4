// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

// effects are recorded while Mux.mu is held, because no call may block then. They take effect when mu is released.
type effects struct {
	dirty     bool     // the result of Fill has changed; reported at the next Tick
	changed   bool     // Options.Changed is to be called
	urgent    bool     // Options.Urgent is to be called
	messages  []string // to be logged
	unflushed []*queue // to be flushed
}

func (m *Mux) lock() { m.mu.Lock() }

// unlock releases mu, and then flushes the queues and reports the changes that were recorded while mu was held.
func (m *Mux) unlock() {
	changed, urgent, messages := m.changed, m.urgent, m.messages
	m.changed, m.urgent, m.messages = false, false, nil
	queue := m.fetchUnflushed()
	m.mu.Unlock()
	if queue != nil {
		queue.flush()
	}
	if urgent && m.options.Urgent != nil {
		m.options.Urgent()
	}
	if changed && !urgent && m.options.Changed != nil {
		m.options.Changed()
	}
	for _, message := range messages {
		if m.options.Log != nil {
			m.options.Log("%s", message)
		}
	}
}

// fetchUnflushed returns the queue that messages were added to, if there is only one; the caller must flush it. If there are several, fetchUnflushed wakes
// their writers, which write concurrently, and returns nil.
func (e *effects) fetchUnflushed() (only *queue) {
	if len(e.unflushed) == 1 {
		only = e.unflushed[0]
	} else {
		for _, q := range e.unflushed {
			q.signal()
		}
	}
	clear(e.unflushed)
	e.unflushed = e.unflushed[:0]
	return only
}

func (e *effects) log(message string) {
	if len(e.messages) < 100 {
		e.messages = append(e.messages, message)
	}
}
