// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
)

// Stop implements runtime.Runtime. It requests a graceful stop, which the multiplexer carries out in steps.
func (r *Runtime) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	if err := r.ask(ctx, uid, incarnation, lsp.Stop, askTimeout); err != nil {
		return fmt.Errorf("stop incarnation %d of language server %s: %w", incarnation, uid, err)
	}
	return nil
}

// Kill implements runtime.Runtime. If the multiplexer cannot be made to kill the server, Kill kills the multiplexer with its whole process tree.
func (r *Runtime) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	failed := r.ask(ctx, uid, incarnation, lsp.Kill, killTimeout)
	if failed == nil {
		return nil
	}
	held, err := r.multiplexer(ctx, uid)
	if err == nil && held != nil && held.Alive() {
		r.log.Info("Killing the multiplexer of a language server, because the multiplexer does not kill the server", "uid", uid, "because", failed.Error())
		err = r.host.Kill(ctx, uid, held.Number)
	}
	if err != nil {
		return fmt.Errorf("kill incarnation %d of language server %s: %w", incarnation, uid, err)
	}
	return nil
}

// errSilent is the error for a multiplexer that is running but cannot be reached.
var errSilent = errors.New("cannot reach its multiplexer")

// ask makes the multiplexer stop or kill an incarnation. If the start of the incarnation was not sent to the multiplexer yet, ask cancels the start instead. It
// returns nil if no multiplexer is running.
func (r *Runtime) ask(ctx context.Context, uid types.UID, incarnation int64, verb lsp.Verb, timeout time.Duration) error {
	held, err := r.multiplexer(ctx, uid)
	if err != nil || held == nil || !held.Alive() {
		return err
	}
	l := r.link(uid)
	l.watch()
	l.acting.Lock()
	defer l.acting.Unlock()
	if taken, err := l.takeBack(ctx, held, incarnation); taken || err != nil {
		return err
	}
	v := l.view()
	switch {
	case held.LeaderExit != nil || v.client == nil || v.report == nil:
		return errSilent
	case verb == lsp.Kill && v.leaving && !serverLives(*v.report):
		return errors.New("its multiplexer is still running although the server has exited") // Kill then kills the multiplexer, the only process left
	}
	return tell(ctx, v.client, lsp.Command{Verb: verb, Incarnation: incarnation}, timeout)
}

// SetFolders changes the folders of the workspace of a running server. It returns an error if the multiplexer cannot be reached.
func (r *Runtime) SetFolders(ctx context.Context, uid types.UID, folders []string) error {
	l := r.known(uid)
	if l == nil {
		return errSilent
	}
	client := l.view().client
	if client == nil {
		return errSilent
	}
	return tell(ctx, client, lsp.Command{Verb: lsp.SetFolders, Folders: folders}, askTimeout)
}

// tell sends a command to a multiplexer.
func tell(ctx context.Context, client *control.Client, command lsp.Command, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := client.Do(ctx, command)
	if err == nil && answer.Code != "" {
		err = errors.New(answer.Error)
	}
	return err
}

// takeBack cancels a start that was not sent to the multiplexer yet. If the multiplexer's Pod is still starting and cannot receive commands, takeBack stops the
// Pod.
func (l *link) takeBack(ctx context.Context, held *facts.Incarnation, incarnation int64) (taken bool, err error) {
	l.mu.Lock()
	if taken = l.pending != nil && l.pending.Incarnation == incarnation && !l.offered; taken {
		l.pending, l.cancelled = nil, incarnation
	}
	l.mu.Unlock()
	if held.Phase == facts.Starting && !l.runtime.site.revives() {
		return true, l.runtime.host.Stop(ctx, l.uid, held.Number)
	}
	if taken {
		l.runtime.host.Announce(l.uid)
	}
	return taken, nil
}

// Keep sets whether the multiplexer must keep running while no server runs. Pass true while clients may connect to a server that sleeps or is about to be
// restarted, and false when the object is stopped or deleted. While keep is true, a lost multiplexer is started again if the site supports that (see Gone). The
// first multiplexer of an object is started together with its first server.
func (r *Runtime) Keep(uid types.UID, keep bool) {
	l := r.known(uid)
	if l == nil {
		if state, err := r.site.state(r.Lifetime(), uid); !keep || err != nil || state.Incarnation == 0 {
			return
		}
		l = r.link(uid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = keep
	switch {
	case !keep:
		l.recheck()
	case l.phase == phaseNone && r.site.revives():
		l.become(phaseReviving)
	}
}

// Forget implements runtime.Runtime.
func (r *Runtime) Forget(ctx context.Context, uid types.UID) error {
	held, err := r.multiplexer(ctx, uid)
	if err != nil {
		return err
	}
	if held != nil && held.Alive() {
		return r.hasten(ctx, uid, held)
	}
	l := r.link(uid)
	l.acting.Lock()
	defer l.acting.Unlock()
	if err := r.host.Forget(ctx, uid); err != nil {
		return err
	}
	if err := r.site.forget(uid); err != nil {
		return fmt.Errorf("forget language server %s: %w", uid, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[uid] == l {
		delete(r.links, uid)
	}
	l.recheck()
	return nil
}

// SetNamespace implements runtime.Runtime, for the Pods of multiplexers.
func (r *Runtime) SetNamespace(uid types.UID, namespace string) {
	r.host.SetNamespace(uid, namespace)
	r.site.setNamespace(uid, namespace)
}

// ReleaseExited implements runtime.Runtime. Once the multiplexer has exited, the Host may remove what it has stored about that multiplexer.
func (r *Runtime) ReleaseExited(ctx context.Context, uid types.UID, incarnation int64) error {
	if _, here := r.site.(*onHost); here {
		return nil // avoid an Observe in each reconcile: on this machine ReleaseExited has no effect
	}
	held, err := r.multiplexer(ctx, uid)
	if err != nil || held == nil || held.Alive() || r.site.noted(uid, held) > incarnation {
		return err
	}
	return r.host.ReleaseExited(ctx, uid, held.Number)
}

// Gone reports whether the multiplexer is missing and is not started again automatically. Connections of clients then cannot start a sleeping server.
func (r *Runtime) Gone(ctx context.Context, uid types.UID) bool {
	if r.site.revives() {
		return false
	}
	held, err := r.multiplexer(ctx, uid)
	return err == nil && (held == nil || !held.Alive())
}

// hasten makes a running multiplexer exit as soon as it has no server, and kills one that cannot be reached. It always returns an error, because the
// multiplexer is still running.
func (r *Runtime) hasten(ctx context.Context, uid types.UID, held *facts.Incarnation) error {
	l := r.link(uid)
	l.watch()
	r.Keep(uid, false)
	if v := l.view(); v.report == nil && !v.young {
		if err := r.host.Kill(ctx, uid, held.Number); err != nil {
			return err
		}
	}
	return fmt.Errorf("forget language server %s: its multiplexer is still running", uid)
}
