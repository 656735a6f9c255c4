// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/sourcegraph/jsonrpc2"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/lsp"
)

const (
	// stateEvery is the interval between two requests for the state of a server that is being waited for.
	stateEvery = 100 * time.Millisecond
	// equalAfter is how long after an answer an equal one shows that a server has read the project of a file.
	equalAfter = 700 * time.Millisecond
)

// Extent states how much a result contains of what there is.
type Extent struct {
	// Complete is true if the result contains everything. If it is false, Reason explains why.
	Complete bool `json:"complete"`
	// Total is the number of entries that the language server has found.
	Total  int    `json:"total"`
	Reason string `json:"reason,omitempty"`
}

// question is a request whose answer depends on the whole project.
type question[T any] struct {
	// path is the file that the question is about. The server reads the project of the file.
	path string
	ask  func(context.Context) (T, error)
	// print describes an answer. Two answers with the same description are equal.
	print func(T) string
	// twice: every answer must equal the next one, because it is combined with files that may change meanwhile.
	twice bool
}

// thorough asks a question until the server has read the project, as far as Berth can determine, or until there is only the time for one more answer. A server answers
// before it has read everything, and such an answer looks like any other one. doubt states why the answer may lack something; it is empty if the answer is complete.
//
// An answer is complete if the server has reported no work in progress before and after it, and was not restarted meanwhile. The first answer about files of a folder
// must also equal the next one.
func thorough[T any](ctx context.Context, c *Client, q question[T]) (answer T, doubt string, err error) {
	patient, cancel := context.WithCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		patient, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/4)) // the rest is for the last answer
	}
	defer cancel()
	last := attempt[T]{incarnation: unlike}
	for {
		now, err := attemptOnce(ctx, patient, c, q)
		pause := c.equalAfter
		switch {
		case err != nil && (!retriable(err) || patient.Err() != nil):
			return now.answer, "", err
		case err != nil:
			now.incarnation = unlike
		case now.doubt != "":
		case now.known && !q.twice || now.printed == last.printed && now.incarnation == last.incarnation:
			c.learn(now.incarnation, q.path)
			return now.answer, "", nil
		case now.known:
			pause, now.doubt = 0, "files are changing"
		default:
			now.doubt = "the language server has just begun to read this project, and its answers still change"
		}
		last = now
		select {
		case <-patient.Done():
			return now.answer, now.doubt, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// attempt is one answer of a server.
type attempt[T any] struct {
	answer      T
	printed     string
	incarnation int64
	known       bool   // the server is known to have read the project
	doubt       string // why the answer may lack something
}

// unlike is the incarnation of an attempt that equals no other one.
const unlike = -1

func attemptOnce[T any](ctx, patient context.Context, c *Client, q question[T]) (a attempt[T], err error) {
	before, known, err := c.awaitIdle(ctx, patient, q.path)
	if err != nil {
		return a, err
	}
	if a.answer, err = q.ask(ctx); err != nil {
		return a, err
	}
	after, err := c.state(ctx)
	a.printed, a.incarnation, a.known, a.doubt = q.print(a.answer), after.Incarnation, known, doubtOf(before, after)
	return a, err
}

// awaitIdle waits until the server serves, lets it read the project of a file, and waits until it reports no work in progress, or until the context patient is done. It
// returns an error if the server does not serve. known reports whether the project is known to be read.
func (c *Client) awaitIdle(ctx, patient context.Context, path string) (state lsp.State, known bool, err error) {
	until := func(reached func() bool) {
		_ = wait.PollUntilContextCancel(patient, stateEvery, true, func(context.Context) (bool, error) {
			if state, err = c.state(ctx); err != nil {
				return false, err
			}
			return reached(), nil
		})
		if err == nil && !state.Serving {
			err = errors.New(doubtOf(state, state))
		}
	}
	until(func() bool { return state.Serving })
	if err != nil {
		return state, false, err
	}
	// Some servers begin to read a project, and to report it, only when a file of it is open.
	loaded := state.Incarnation
	known = c.load(patient, state, path)
	until(func() bool { return doubtOf(state, state) == "" })
	return state, known && state.Incarnation == loaded, err
}

// doubtOf returns why an answer may lack something, by the states before and after it; empty if it does not.
func doubtOf(before, after lsp.State) string {
	switch {
	case !after.Serving:
		return "the language server does not serve requests: " + after.Reason
	case before.Incarnation != after.Incarnation:
		return "the language server was restarted meanwhile"
	case !before.Indexed || !after.Indexed:
		return "the language server is still indexing its workspace"
	case before.Working || after.Working:
		return "the language server is still working"
	}
	return ""
}

// state returns what the server is doing. A multiplexer of an older version does not know; the result then has no incarnation.
func (c *Client) state(ctx context.Context) (state lsp.State, err error) {
	err = c.conn.Call(ctx, lsp.MethodState, struct{}{}, &state)
	var failed *jsonrpc2.Error
	if errors.As(err, &failed) && !retriable(err) {
		return lsp.State{Serving: true, Indexed: true}, nil
	}
	return state, err
}

// project is a folder with a file that a question was about, at one incarnation of the server.
type project struct {
	incarnation int64
	folder      string
}

// load makes the server read the project of a file: it requests the diagnostics of the file, which the server can only compute with its project. It does so once for
// each folder. load reports whether the project is known to be read.
func (c *Client) load(ctx context.Context, state lsp.State, path string) (known bool) {
	of := project{state.Incarnation, filepath.Dir(path)}
	c.projectsMu.Lock()
	known, asked := c.projects[of]
	if !asked {
		c.projects[of] = false
	}
	c.projectsMu.Unlock()
	if asked || path == "" {
		return known
	}
	_, _ = c.Diagnostics(ctx, []string{path}) // the question itself shows whether the server can read the file
	return false
}

// learn records that the project of a file is read.
func (c *Client) learn(incarnation int64, path string) {
	if incarnation == 0 {
		return
	}
	c.projectsMu.Lock()
	defer c.projectsMu.Unlock()
	for of := range c.projects {
		if of.incarnation != incarnation {
			delete(c.projects, of)
		}
	}
	c.projects[project{incarnation, filepath.Dir(path)}] = true
}

// retriable reports whether the multiplexer suggests to repeat a request that has failed.
func retriable(err error) bool {
	var failed *jsonrpc2.Error
	var detail struct {
		Retriable bool `json:"retriable"`
	}
	if !errors.As(err, &failed) {
		return false
	}
	if failed.Data != nil {
		_ = json.Unmarshal(*failed.Data, &detail) // an error of the server has other data
	}
	return detail.Retriable || failed.Code == contentModified
}

// contentModified is the error of a server that has discarded a request because of a change.
const contentModified = -32801
