// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// foldersOf returns the folders for the fingerprint of an incarnation. If the server can change its folders while it runs, they are those with which it was started,
// so that a change of spec.workspace.folders requires no restart. The same applies while the server has not stated yet whether it can, and while the multiplexer
// cannot be reached, if this manager has heard from it before.
func (k *Kind) foldersOf(server *v1alpha1.LanguageServer, current *facts.Incarnation) []string {
	folders := server.Spec.Workspace.Folders
	if current == nil || !current.Alive() {
		return folders
	}
	m := k.memories.Keep(server.UID)
	m.enter(current.Number)
	if report, known := k.report(server); known && report.Incarnation == current.Number {
		m.startFolders = nil
		if report.FoldersChange || !report.Initialized {
			m.startFolders = report.StartFolders
		}
	}
	if mayChange(server, m.startFolders) {
		return m.startFolders
	}
	return folders
}

// mayChange reports whether a server that was started with some folders may change to those of the spec without a restart. The root, which is the first folder,
// never changes while a server runs.
func mayChange(server *v1alpha1.LanguageServer, started []string) bool {
	folders := server.Spec.Workspace.Folders
	return server.Spec.UpdatePolicy != v1alpha1.UpdateOnRestart && len(folders) > 0 && len(started) > 0 && folders[0] == started[0]
}

// setFolders passes the folders of the spec to a running server that can change to them. retry is how long to wait before the next attempt; 0 if none is needed.
func (k *Kind) setFolders(ctx context.Context, server *v1alpha1.LanguageServer, report lsp.Report) (retry time.Duration) {
	if !report.FoldersChange || !mayChange(server, report.StartFolders) || slices.Equal(report.Folders, server.Spec.Workspace.Folders) {
		return 0
	}
	if err := k.reporter(server).SetFolders(ctx, server.UID, server.Spec.Workspace.Folders); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot change the folders of a language server; trying again")
		return unheardRetry
	}
	return 0
}
