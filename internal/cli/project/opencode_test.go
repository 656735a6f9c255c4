// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

// opencodeEvents sends events to the plugin as opencode does, and waits after each until the plugin has reported, or has not.
const opencodeEvents = `import { BerthPlugin } from "./berth.mjs"
import { readFileSync } from "node:fs"
const plugin = await BerthPlugin()
const reports = () => { try { return readFileSync("reports", "utf8").split("\n").length - 1 } catch { return 0 } }
let expected = 0
async function on(type, properties, more) {
  await plugin.event({ event: { type, properties } })
  expected += more
  for (let i = 0; i < 150 && reports() < expected; i++) await new Promise((done) => setTimeout(done, 20))
}
await on("session.created", { info: { id: "child", parentID: "s" } }, 0)
await on("session.status", { sessionID: "s", status: { type: "busy" } }, 1)
await on("session.status", { sessionID: "s", status: { type: "busy" } }, 0)
await on("permission.asked", { id: "p1", sessionID: "s" }, 1)
await on("permission.asked", { id: "p2", sessionID: "s" }, 0)
await on("permission.replied", { requestID: "p1", sessionID: "s" }, 1)
await on("session.status", { sessionID: "s", status: { type: "busy" } }, 0)
await on("permission.replied", { requestID: "p2", sessionID: "s" }, 1)
await on("session.status", { sessionID: "child", status: { type: "idle" } }, 0)
await on("question.asked", { id: "q", sessionID: "s" }, 1)
await on("question.rejected", { requestID: "q", sessionID: "s" }, 1)
await on("session.status", { sessionID: "s", status: { type: "idle" } }, 1)
await on("session.status", { sessionID: "s", status: { type: "busy" } }, 1)
await on("session.error", { sessionID: "s", error: { name: "APIError" } }, 1)
await on("session.status", { sessionID: "s", status: { type: "idle" } }, 0)
await on("file.edited", { file: "x" }, 0)
`

func TestOpencodePlugin_ReportsWhatOpencodeDoes(t *testing.T) {
	need.Programs(t, "node")
	g := NewWithT(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"berth.mjs": opencodePlugin, "events.mjs": opencodeEvents, "berth": "#!/bin/sh\necho \"$@\" >> reports\n"} {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700)).To(Succeed())
	}
	node := exec.CommandContext(t.Context(), "node", "events.mjs")
	node.Dir, node.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := node.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	text, err := os.ReadFile(filepath.Join(dir, "reports"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), "hook --state ", "")), "\n")).To(Equal([]string{
		"Working --session s", "Waiting --session s --question permission",
		"Waiting --session s --question permission", // again, because the answer to the other question has ended the report
		"Working --session s", "Waiting --session s --question question", "Working --session s", "Done --session s", "Working --session s", "Failed --session s",
	}))
}
