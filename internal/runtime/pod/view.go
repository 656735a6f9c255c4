// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/signals"
)

// view is the recorded output of the terminal of one Pod. A nil view is empty.
type view struct {
	pod  *corev1.Pod
	tell func() // notifies the caller of watch that the terminal has changed

	mu      sync.Mutex
	text    []byte // the end of the output
	heard   []byte // output since the connection was made, until join merges it into text
	last    time.Time
	live    bool // a connection exists, and text is complete, because join was called
	failed  bool // the last connection attempt failed
	told    signals.Tracker
	watched bool
}

// signals returns what the program has told its terminal; zero if no connection exists. Signals from before the connection have no time.
func (v *view) signals() facts.Signals {
	if v == nil {
		return facts.Signals{}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.live {
		return facts.Signals{}
	}
	return v.told.Signals()
}

// activity returns the time of the last output. If live is false, there may have been later output, because no connection exists.
func (v *view) activity() (last time.Time, live bool) {
	if v == nil {
		return time.Time{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last, v.live
}

// output returns the end of the output. live reports whether text is complete up to the last byte.
func (v *view) output() (text []byte, live bool) {
	if v == nil {
		return nil, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return bytes.Clone(v.text), v.live
}

// watch requests one notification of the next output, or of the next connection that is made or lost. It returns false if no notification will follow.
func (v *view) watch() bool {
	if v == nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched = !v.failed
	return v.watched
}

// fire sends the notification that watch has requested. The caller holds the lock.
func (v *view) fire() {
	if v.watched {
		v.watched = false
		v.tell()
	}
}

// Write implements io.Writer; it receives the output of the program.
func (v *view) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		v.text = kept(v.text, p)
	} else {
		v.heard = kept(v.heard, p)
	}
	v.last = time.Now()
	v.told.Note(p, v.last)
	v.fire()
	return len(p), nil
}

// kept returns the text with the new output appended. To avoid a copy on every write, it drops the beginning only when the result exceeds twice mostShown.
func kept(text, more []byte) []byte {
	if text = append(text, more...); len(text) > 2*mostShown {
		text = bytes.Clone(end(text))
	}
	return text
}

// join puts the node's log before the output that was received since the connection was made. After join, text is complete.
func (v *view) join(logged []byte, last time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if missed(v.text, logged) {
		v.text, v.told = logged, signals.Tracker{}
		v.told.Note(logged, time.Time{})
		v.told.Note(v.heard, time.Time{})
	}
	v.text = joined(v.text, returned(v.heard))
	if last.After(v.last) {
		v.last = last
	}
	v.heard, v.live, v.failed = nil, true, false
	v.fire() // for output between two connections
}

// lost marks the connection as lost, and reports whether it was live. The recorded text is kept for the next connection.
func (v *view) lost() (was bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was = v.live
	v.heard, v.live, v.failed = nil, false, true
	v.fire() // the caller of watch must poll from now on
	return was
}

// mark is the size of the end of the recorded text that missed searches for in the log, in bytes.
const mark = 512

// missed reports whether a log contains lines that are missing in text. The text may end with an incomplete line, which is not logged.
func missed(text, logged []byte) bool {
	text = returned(text)
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if len(whole) == 0 {
		return len(logged) > 0
	}
	return !bytes.HasSuffix(logged, whole[max(0, len(whole)-mark):]) && len(logged) > 0
}

// joined appends heard, the output received on a connection, to text, the log that was read after the connection was made. The two can overlap: the log may
// contain lines that are also in heard, and may lack the latest lines of heard.
func joined(text, heard []byte) []byte {
	whole := heard[:bytes.LastIndexByte(heard, '\n')+1]
	if at := bytes.LastIndex(text, whole); len(whole) > 0 && at >= 0 {
		return append(text[:at], heard...)
	}
	for n := min(len(text), len(whole)); n > 0; n-- {
		if bytes.HasSuffix(text, whole[:n]) {
			return append(text, heard[n:]...)
		}
	}
	return append(text, heard...)
}
