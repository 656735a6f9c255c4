// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

const flaskProgram = `import flask
app = flask.Flask(__name__)
@app.get("/")
def answer():
    return "answer 0"
`

const djangoProgram = `import sys
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpResponse
from django.urls import path
settings.configure(DEBUG=True, ROOT_URLCONF=__name__, SECRET_KEY="test", ALLOWED_HOSTS=["*"])
urlpatterns = [path("", lambda request: HttpResponse("answer 0"))]
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
`

const nodeProgram = `require("http").createServer((_, response) => response.end("answer 0")).listen(process.env.PORT, "127.0.0.1")
`

var _ = DescribeTable("A DevServer behind its proxy fails no GET while it reloads itself", Label(anyUser),
	func(ctx context.Context, file, program string, command func(ctx context.Context) []string) {
		dir := GinkgoT().TempDir()
		edit := func(version int) {
			text := strings.Replace(program, "answer 0", fmt.Sprint("answer ", version), 1)
			Expect(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)).To(Succeed())
		}
		edit(0)
		s := newProxiedServer("reloads", dir, command(ctx)...).create(ctx).waitUntilReady(ctx)
		url := s.server().Status.URL
		Eventually(func() string { _, _, text := get(url); return text }).WithTimeout(startTimeout).Should(Equal("answer 0"))

		var readers []*pageReader
		for range 4 {
			readers = append(readers, startPageReader(url))
		}
		for version := 1; version <= reloadCount(); version++ {
			Eventually(func(g Gomega) {
				edit(version) // repeated after 5 s, because Django does not notice an edit between its start and its first check
				g.Eventually(func() string { _, _, text := get(url); return text }).WithTimeout(5 * time.Second).Should(Equal(fmt.Sprint("answer ", version)))
			}).WithTimeout(startTimeout).Should(Succeed())
		}
		var all int
		for _, r := range readers {
			read, failed := r.stop()
			Expect(failed).To(BeEmpty(), "of %d", read)
			all += read
		}
		Expect(all).To(BeNumerically(">", reloadCount()))
		AddReportEntry(fmt.Sprintf("%d GETs over %d reloads", all, reloadCount()))
	},
	Entry("Flask", NodeTimeout(10*time.Minute), "app.py", flaskProgram, func(context.Context) []string {
		return []string{"/usr/bin/env", "FLASK_DEBUG=1", need.Python(GinkgoT(), "flask"), "-m", "flask", "--app", "app", "run", "--port", "$(PORT)"}
	}),
	Entry("Django", NodeTimeout(10*time.Minute), "app.py", djangoProgram, func(context.Context) []string {
		return []string{need.Python(GinkgoT(), "django"), "app.py", "runserver", "127.0.0.1:$(PORT)"}
	}),
	Entry("node --watch", NodeTimeout(10*time.Minute), "server.js", nodeProgram, func(context.Context) []string {
		return []string{"node", "--watch", "server.js"}
	}),
	Entry("nodemon", NodeTimeout(10*time.Minute), "server.js", nodeProgram, func(ctx context.Context) []string {
		return []string{filepath.Join(installProject(ctx, "test/e2e/projects/nodemon"), "node_modules", ".bin", "nodemon"), "server.js"}
	}),
)

// reloadCount returns how often each server reloads itself: the value of the environment variable RELOADS, or 5.
func reloadCount() int {
	if n, err := strconv.Atoi(os.Getenv("RELOADS")); err == nil {
		return n
	}
	return 5
}
