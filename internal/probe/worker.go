// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"time"
)

const (
	// fastest and slowest bound the time between two probes of a server that is not ready yet. The time starts at fastest and grows by half with
	// each probe.
	fastest = 100 * time.Millisecond
	slowest = 500 * time.Millisecond
	// muteLimit is the number of consecutive connections without a response after which the server counts as one that does not use HTTP.
	muteLimit = 3
)

// probe runs the check until the context is done, or until the first success if Once is set.
func (w *worker) probe(ctx context.Context) {
	state := tally{config: w.config, delay: fastest}
	for {
		answer := w.ask(ctx)
		if ctx.Err() != nil {
			return // an interrupted probe has no valid outcome
		}
		w.publish(state.add(answer))
		if w.config.Once && answer.ok {
			return
		}
		timer := w.clock.NewTimer(state.wait())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

func (w *worker) ask(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	switch check := w.config.Check; {
	case check.HTTP != nil:
		return check.HTTP.run(ctx, w.config.Timeout)
	case check.TCP != nil:
		return check.TCP.run(ctx, w.config.Timeout)
	case check.Exec != nil:
		return check.Exec.run(ctx, w.config.Timeout)
	}
	return failed("the probe has no httpGet, tcpSocket or exec")
}

func (w *worker) publish(result Result) {
	if *w.result.Load() == result {
		return
	}
	w.result.Store(&result)
	w.changed()
}

// tally combines the outcomes of single probes into a result.
type tally struct {
	config Config
	result Result

	failures int // in a row
	mutes    int // in a row
	delay    time.Duration
}

func (t *tally) add(answer outcome) Result {
	t.mutes++
	if !answer.mute {
		t.mutes = 0
	}
	if answer.ok || (t.mutes >= muteLimit) {
		t.failures, t.delay = 0, fastest
		t.result = Result{Known: true, OK: true}
		return t.result
	}
	t.failures++
	t.result.Message = answer.message
	if t.failures >= max(1, t.config.Threshold) {
		t.result.Known, t.result.OK = true, false
	}
	return t.result
}

// wait returns the time until the next probe.
func (t *tally) wait() time.Duration {
	if t.result.OK || (t.config.Proven && !t.result.Known) {
		return t.config.Period
	}
	delay := t.delay
	t.delay = min(slowest, t.delay*3/2)
	return min(delay, t.config.Period)
}
