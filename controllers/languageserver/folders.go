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

// foldersOf returns the folders for the fingerprint of an incarnation. While the running server can change its folders, they are those with which it was started:
// then a change of spec.workspace.folders requires no restart. The root, which is the first folder, never changes while a server runs.
func (k *Kind) foldersOf(server *v1alpha1.LanguageServer, current *facts.Incarnation) []string {
	if current != nil && current.Phase == facts.Running {
		if report, known := k.report(server); known && report.Incarnation == current.Number && changesFolders(server, report) {
			return report.StartFolders
		}
	}
	return server.Spec.Workspace.Folders
}

// changesFolders reports whether the server changes to the folders of the spec without a restart.
func changesFolders(server *v1alpha1.LanguageServer, report lsp.Report) bool {
	folders := server.Spec.Workspace.Folders
	return report.FoldersChange && server.Spec.UpdatePolicy != v1alpha1.UpdateOnRestart &&
		len(folders) > 0 && len(report.StartFolders) > 0 && folders[0] == report.StartFolders[0]
}

// setFolders passes the folders of the spec to a running server that can change to them. retry is how long to wait before the next attempt; 0 if none is needed.
func (k *Kind) setFolders(ctx context.Context, server *v1alpha1.LanguageServer, report lsp.Report) (retry time.Duration) {
	if !changesFolders(server, report) || slices.Equal(report.Folders, server.Spec.Workspace.Folders) {
		return 0
	}
	if err := k.reporter(server).SetFolders(ctx, server.UID, server.Spec.Workspace.Folders); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot change the folders of a language server; trying again")
		return unheardRetry
	}
	return 0
}
