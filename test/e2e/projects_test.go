// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/npm"
)

// installProject returns a copy of an npm project, whose path is relative to the root of the project, with its packages installed.
func installProject(ctx context.Context, source string) string {
	GinkgoHelper()
	need.Programs(GinkgoT(), "node", "npm")
	dir, err := npm.Install(ctx, filepath.Join(suiteBerth.root, source), func() { By("installing " + filepath.Base(source) + " with npm") })
	Expect(err).NotTo(HaveOccurred())
	return dir
}
