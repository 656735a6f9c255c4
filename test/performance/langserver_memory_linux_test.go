// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// editorCount is the number of clients that use the same workspace.
const editorCount = 3

// frequentCollection is a GOGC value that keeps the unused part of a Go heap small.
const frequentCollection = "20"

// memoryRounds is the number of rounds of TestMultiplexer_SharedServerMemory.
const memoryRounds = 5

// TestMultiplexer_SharedServerMemory compares the memory of one gopls that serves three clients with the memory of three gopls that serve one client each.
// All processes collect garbage more often than by default: with the default, the memory of an idle gopls is 120 or 220 MiB, depending on how long ago it
// collected. Even so, gopls sometimes keeps up to 90 MiB that it no longer uses, so the test compares the smallest figures of all rounds, not the medians.
func TestMultiplexer_SharedServerMemory(t *testing.T) {
	t.Setenv("GOGC", frequentCollection)
	folder, files := goWorkspace(t)
	var separates, shareds []float64
	for range memoryRounds {
		separates, shareds = append(separates, separateMemory(t, folder, files)), append(shareds, sharedMemory(t, folder, files))
	}
	separate, shared := slices.Min(separates), slices.Min(shareds)
	addFigure("language server, memory of three gopls", "%.0f MiB", separate)
	addFigure("language server, memory of one gopls and its multiplexer, with three clients", "%.0f MiB", shared)
	expectAtMost(t, "language server, memory of three clients on one / three", 100*shared/separate, 45, 1.2, " %")
}

// goWorkspace returns a module without external dependencies. It imports large packages of the standard library, so that gopls has much to
// type-check.
func goWorkspace(t *testing.T) (folder string, files []string) {
	t.Helper()
	folder = t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.test/bench\n\ngo 1.24\n")
	for i, imported := range []string{"net/http", "go/types", "crypto/tls", "database/sql", "html/template", "image/png", "encoding/xml", "archive/zip"} {
		name := fmt.Sprintf("file%d.go", i)
		base := imported[strings.LastIndexByte(imported, '/')+1:]
		use := map[string]string{
			"http": "Server", "types": "Config", "tls": "Config", "sql": "DB", "template": "Template", "png": "Encoder", "xml": "Decoder", "zip": "Reader",
		}[base]
		write(name, fmt.Sprintf("package bench\n\nimport %q\n\n// Use%d is used.\nfunc Use%d(v *%s.%s) *%s.%s { return v }\n", imported, i, i, base, use, base, use))
		files = append(files, filepath.Join(folder, name))
	}
	return folder, files
}

// useAsEditor acts like an editor: it opens all files and sends a hover request and a references request for each.
func useAsEditor(t *testing.T, client *lspclient.Client, files []string) {
	t.Helper()
	g := NewWithT(t)
	for i, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(client.Open(lspclient.URI(file), "go", 1, string(text))).To(Succeed())
		at := lspclient.Find(string(text), fmt.Sprintf("Use%d", i), 2)
		g.Eventually(func() (string, error) { return client.Hover(t.Context(), lspclient.URI(file), at) }).WithTimeout(patience).
			Should(ContainSubstring(fmt.Sprintf("func Use%d", i)))
		g.Eventually(func() ([]lspclient.Location, error) {
			return client.References(t.Context(), lspclient.URI(file), at)
		}).WithTimeout(patience).ShouldNot(BeEmpty())
	}
}

func separateMemory(t *testing.T, folder string, files []string) (mib float64) {
	t.Helper()
	var pids []int
	for range editorCount {
		program, err := lspclient.Start(exec.Command(gopls(t)))
		if err != nil {
			t.Fatal(err)
		}
		client := lspclient.New(program, lspclient.Options{})
		defer func() {
			_ = program.Kill()
			client.Close()
		}()
		if _, err := client.Initialize(t.Context(), folder); err != nil {
			t.Fatal(err)
		}
		useAsEditor(t, client, files)
		pids = append(pids, program.Process.Pid)
	}
	return proportionalMemory(t, pids...)
}

func sharedMemory(t *testing.T, folder string, files []string) (mib float64) {
	t.Helper()
	m := startMultiplexer(t)
	m.serve(1, lsp.Config{Language: "go", Folders: []string{folder}}, folder, gopls(t))
	for range editorCount {
		client := m.client(t, folder)
		useAsEditor(t, client, files)
	}
	mib = proportionalMemory(t, m.cmd.Process.Pid)
	m.sendCommand(lsp.Command{Verb: lsp.Kill, Incarnation: 1})
	return mib
}

const (
	// hostileBytes is the number of bytes that the hostile server sends, and that all hostile clients send together. announcedBytes is the length that each
	// client announces; hostileClientCount is the number of clients.
	hostileBytes       = 64 << 20
	announcedBytes     = 30 << 20
	hostileClientCount = 8
)

// TestMultiplexer_MemoryWithHostilePeers measures how much memory the multiplexer uses when clients, or a server, announce long messages and send only a part
// of them.
func TestMultiplexer_MemoryWithHostilePeers(t *testing.T) {
	var fromClients, fromServer []float64
	for range rounds {
		fromClients = append(fromClients, hostileClientMemory(t)/(hostileBytes>>20))
		fromServer = append(fromServer, hostileServerMemory(t)/(hostileBytes>>20))
	}
	expectAtMost(t, "language server, memory for partial messages of clients / bytes received", median(fromClients), 2, 1.25, "×")
	expectAtMost(t, "language server, memory for a partial message of the server / bytes received", median(fromServer), 2, 1.25, "×")
}

// peakMemory returns the peak resident memory of berth-lsp in MiB.
func (m *multiplexer) peakMemory() float64 {
	m.t.Helper()
	return float64(statusField(m.t, m.cmd.Process.Pid, "VmHWM")) / 1024
}

// hostileClientMemory sends incomplete messages from clients and returns by how much the peak memory of the multiplexer grew, in MiB.
func hostileClientMemory(t *testing.T) float64 {
	t.Helper()
	g := NewWithT(t)
	m := startMultiplexer(t)
	before := m.peakMemory()
	part := bytes.Repeat([]byte(" "), hostileBytes/hostileClientCount)
	for range hostileClientCount {
		conn, err := net.Dial("unix", m.socket())
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close() }()
		_, err = fmt.Fprintf(conn, "Content-Length: %d\r\n\r\n", announcedBytes)
		g.Expect(err).NotTo(HaveOccurred())
		// When Write returns, the multiplexer has read everything except what still fits into the socket buffer.
		_, err = conn.Write(part)
		g.Expect(err).NotTo(HaveOccurred())
	}
	// A client that announces more than the limit, or never ends its header, is disconnected.
	for _, words := range []string{"Content-Length: 1099511627776\r\n\r\n", strings.Repeat("X-Header: x\r\n", 1<<16), "X: " + strings.Repeat("x", 1<<20)} {
		conn, err := net.Dial("unix", m.socket())
		g.Expect(err).NotTo(HaveOccurred())
		_, _ = conn.Write([]byte(words)) // an error is fine: the connection may already be closed
		g.Expect(conn.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
		for buffer := make([]byte, 4096); err == nil; {
			_, err = conn.Read(buffer)
		}
		g.Expect(os.IsTimeout(err)).To(BeFalse(), "the client was not disconnected")
		_ = conn.Close()
	}
	grown := m.peakMemory() - before
	g.Expect(m.report().Protocol).To(Equal(lsp.Protocol))
	return grown
}

// hostileServerMemory sends an incomplete message from a server and returns by how much the peak memory of the multiplexer grew, in MiB.
func hostileServerMemory(t *testing.T) float64 {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	stall := script.Fault{Method: "textDocument/hover", Do: script.Stall, Bytes: hostileBytes}
	g.Expect(script.Script{Faults: []script.Fault{stall}}.Write(dir, "hostile")).To(Succeed())
	m := startMultiplexer(t)
	config := lsp.Config{Language: "fake", Folders: []string{dir}, Limits: lsp.Limits{MessageBytes: 4 * hostileBytes}}
	m.serve(1, config, dir, fakePath(t), "-dir", dir, "-name", "hostile")
	client := m.client(t, dir)
	uri := lspclient.URI(dir, "one.txt")
	g.Expect(client.Open(uri, "fake", 1, "hello")).To(Succeed())
	before := m.peakMemory()
	_, err := client.StartCall("textDocument/hover", lspclient.PositionParams(uri, lspclient.Position{}))
	g.Expect(err).NotTo(HaveOccurred())
	// The fake server writes this line to its journal when the multiplexer has read all its bytes.
	g.Eventually(func() (bool, error) {
		lines, err := script.Journal(dir, "hostile")
		return slices.ContainsFunc(lines, func(line script.Line) bool { return line.What == script.Stalled }), err
	}).WithTimeout(patience).Should(BeTrue())
	return m.peakMemory() - before
}
