// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// view is what is seen of the terminal of one Pod. A nil view sees nothing.
type view struct {
	pod  *corev1.Pod
	tell func() // that the terminal has moved, to who watches

	mu      sync.Mutex
	text    []byte // the end of what was put out
	heard   []byte // what was put out since somebody listens, until that is joined with the text
	last    time.Time
	live    bool // somebody listens, and all that came before is in the text
	failed  bool // the last try to listen came to nothing
	watched bool
}

// activity gives when something was last put out, and whether that is all that there is to know.
func (v *view) activity() (last time.Time, live bool) {
	if v == nil {
		return time.Time{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last, v.live
}

// output gives the end of what was put out, if that is known to its last byte.
func (v *view) output() (text []byte, live bool) {
	if v == nil {
		return nil, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return bytes.Clone(v.text), v.live
}

// watch has it told once when something is put out, or when it turns out whether somebody can listen. It is false when nobody will tell.
func (v *view) watch() bool {
	if v == nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched = !v.failed
	return v.watched
}

// fire is called with the lock held.
func (v *view) fire() {
	if v.watched {
		v.watched = false
		v.tell()
	}
}

// Write implements io.Writer with what the program puts out.
func (v *view) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		v.text = kept(v.text, p)
	} else {
		v.heard = kept(v.heard, p)
	}
	v.last = time.Now()
	v.fire()
	return len(p), nil
}

// kept appends, and cuts off the beginning now and then: not at every byte.
func kept(text, more []byte) []byte {
	if text = append(text, more...); len(text) > 2*mostShown {
		text = bytes.Clone(end(text))
	}
	return text
}

// join puts what the node has logged until now before what was heard: from here on all is known.
func (v *view) join(logged []byte, last time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if missed(v.text, logged) {
		v.text = logged
	}
	v.text = joined(v.text, returned(v.heard))
	if last.After(v.last) {
		v.last = last
	}
	v.heard, v.live, v.failed = nil, true, false
	v.fire() // what came between two connections
}

// lost says that nobody listens any more, and whether somebody did. What was seen so far is kept for when somebody does again.
func (v *view) lost() (was bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was = v.live
	v.heard, v.live, v.failed = nil, false, true
	v.fire() // who watches has to look by itself
	return was
}

// mark is how much of the end of a text is looked for in another one, in bytes.
const mark = 512

// missed says whether a log has more lines than a text, which may end with a line that is not ended and not logged.
func missed(text, logged []byte) bool {
	text = returned(text)
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if len(whole) == 0 {
		return len(logged) > 0
	}
	return !bytes.HasSuffix(logged, whole[max(0, len(whole)-mark):]) && len(logged) > 0
}

// joined puts a text that was heard after the one before it, which was logged after the other began. The log may have lines that were not heard yet, and
// lack some that were.
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
