// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/mux"
	"github.com/berth-dev/berth/test/lspclient"
)

// edited are the servers whose diagnostics are tested after edits: from in the main file is replaced by to, which contains an undefined name. helper is another
// file of the project, and comment the beginning of a comment.
var edited = []struct{ server, from, to, helper, comment string }{
	{"gopls", "helper(g.name)", "%s(g.name)", "helper.go", "// "},
	{"clangd", "helper(count)", "%s(count)", "helper.h", "// "},
	{"typescript-language-server", "helper(this", "%s(this", "helper.ts", "// "},
	{"basedpyright", "helper(self", "%s(self", "helper.py", "# "},
	{"tsgo", "helper(this", "%s(this", "helper.ts", "// "},
}

// undefined matches the names that the edits add.
var undefined = regexp.MustCompile(`missing_\d+_end`)

// editor edits the main file of a project. Each text has one undefined name, and the diagnostics for it must mention this name and no other.
type editor struct {
	*lspclient.Client
	uri, text, from, to string
	version             int
	took                []time.Duration
	missing, stale      int
}

// edit makes one edit, and waits for its diagnostics. It counts those that do not arrive, and those for an earlier text that claim to be for this one.
func (e *editor) edit(ctx context.Context) {
	e.version++
	name := fmt.Sprintf("missing_%d_end", e.version)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	if e.Change(e.uri, e.version, strings.Replace(e.text, e.from, fmt.Sprintf(e.to, name), 1)) != nil {
		e.missing++
		return
	}
	_, err := e.WaitForDiagnostics(ctx, e.uri, func(d lspclient.Diagnostics) bool {
		names := undefined.FindAllString(fmt.Sprint(d.All), -1)
		right := len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return n != name })
		if !right && d.Version != nil && *d.Version == int64(e.version) {
			e.stale++
		}
		return right
	})
	if err != nil {
		e.missing++
	}
	e.took = append(e.took, time.Since(began))
}

// percentile returns a percentile of the durations.
func percentile(all []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(100 * time.Microsecond)
}

// replaceable is a multiplexer whose server the test replaces.
type replaceable struct {
	*mux.Mux
	start       func() *lspclient.Program
	running     *lspclient.Program
	incarnation int64
}

func (r *replaceable) attach() {
	r.incarnation++
	r.running = r.start()
	r.Attach(r.incarnation, r.running, r.running)
}

func (r *replaceable) restart() {
	r.Hold("the test restarts the server")
	_ = r.running.Kill()
	r.Detach(r.incarnation, lsp.Asked)
	r.attach()
}

// obey restarts the server when the multiplexer reports that it has to be restarted, as the manager does.
func (r *replaceable) obey(t *testing.T) {
	t.Helper()
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
			var report lsp.Report
			if r.Fill(&report); report.Restart {
				r.restart()
			}
		}
	})
	t.Cleanup(func() {
		close(over)
		done.Wait()
	})
}

// editCount is the number of edits in each situation: the value of the environment variable EDITS, or 4.
func editCount() int {
	if n, err := strconv.Atoi(os.Getenv("EDITS")); err == nil {
		return n
	}
	return 4
}

// edits are the edits of one server in one situation after another.
type edits struct {
	t      *testing.T
	server string
	// alone is the p50 without Berth in each situation in which it was measured.
	alone map[string]time.Duration
}

// measure edits the file while act is called repeatedly, with a pause. It fails the test if diagnostics are missing or stale.
func (m *edits) measure(e *editor, berth bool, situation string, pause time.Duration, act func(n int)) {
	ctx, cancel := context.WithCancel(m.t.Context())
	var busy sync.WaitGroup
	if act != nil {
		busy.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				act(n)
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	e.took, e.missing, e.stale = nil, 0, 0
	typing := time.NewTicker(100 * time.Millisecond) // otherwise a fast server has seen all edits before anything else happens
	defer typing.Stop()
	for range editCount() {
		e.edit(m.t.Context())
		<-typing.C
	}
	cancel()
	busy.Wait()
	half, note := percentile(e.took, 50), ""
	switch alone := m.alone[situation]; {
	case !berth:
		m.alone[situation] = half
		note = ", without Berth"
	case alone > 0:
		note = fmt.Sprintf(", %.2f of the time without Berth at p50", float64(half)/float64(alone))
	}
	m.t.Logf("%s, %s%s: %d edits, %d missing, %d stale, p50 %s, p99 %s", m.server, situation, note, len(e.took), e.missing, e.stale, half, percentile(e.took, 99))
	if e.missing+e.stale > 0 {
		m.t.Errorf("%s, %s: %d missing and %d stale diagnostics", m.server, situation, e.missing, e.stale)
	}
}

// reads returns a function that asks for the symbols of the files: three times those of the helper file, then those of the edited file. Some servers send no
// diagnostics while clients send questions too often, also alone: basedpyright interrupts its analysis for each question.
func reads(ctx context.Context, c *lspclient.Client, helper, edited string) func(n int) {
	return func(n int) {
		about := helper
		if n%4 == 3 {
			about = edited
		}
		_ = c.Call(ctx, documentSymbols, map[string]any{"textDocument": map[string]any{"uri": about}}, nil)
	}
}

const (
	oneClient = "one client"
	reading   = "questions at the same time"
	// readPause and changePause are the pauses between questions, and between other changes. gopls interrupts the analysis of a file when another file changes, and
	// resumes it after a second without changes.
	readPause, changePause = 500 * time.Millisecond, 3 * time.Second
)

// TestServers_DiagnosticsAfterEdits edits a file while other things happen. EDITS is the number of edits in each situation.
func TestServers_DiagnosticsAfterEdits(t *testing.T) {
	for _, c := range edited {
		s := servers[c.server]
		t.Run(c.server, func(t *testing.T) {
			g := NewWithT(t)
			folder := s.folder(t)
			uri, text := lspclient.URI(folder, s.main), s.files[s.main]
			helperURI, helper := lspclient.URI(folder, c.helper), s.files[c.helper]
			newEditor := func(client *lspclient.Client) *editor {
				g.Expect(client.Open(uri, s.language, 0, text)).To(Succeed())
				e := &editor{Client: client, uri: uri, text: text, from: c.from, to: c.to}
				e.edit(t.Context()) // the server reads the project
				return e
			}
			m := &edits{t: t, server: c.server, alone: map[string]time.Duration{}}
			if !s.pulls {
				t.Run("without Berth", func(t *testing.T) {
					e := newEditor(s.alone(t, folder, clientKinds["editor"]))
					m.measure(e, false, oneClient, 0, nil)
					m.measure(e, false, reading, readPause, reads(t.Context(), e.Client, helperURI, uri))
				})
			}
			shared := s.replaceable(t, folder)
			e, other := newEditor(s.connect(t, shared.Mux, folder, clientKinds["editor"])), s.connect(t, shared.Mux, folder, clientKinds["editor"])
			m.measure(e, true, oneClient, 0, nil)
			m.measure(e, true, reading, readPause, reads(t.Context(), other, helperURI, uri))
			g.Expect(other.Open(helperURI, s.language, 0, helper)).To(Succeed())
			m.measure(e, true, "a client that edits another file", changePause, func(n int) {
				_ = other.Change(helperURI, n+1, fmt.Sprintf("%s%s%d\n", helper, c.comment, n))
			})
			g.Expect(other.CloseDocument(helperURI)).To(Succeed())
			m.measure(e, true, "changes on disk", changePause, func(n int) {
				_ = os.WriteFile(filepath.Join(folder, c.helper), fmt.Appendf(nil, "%s%s%d\n", helper, c.comment, n), 0o600)
			})
			m.measure(e, true, "restarts of the server", 10*time.Second, func(int) { shared.restart() })
			g.Expect(other.Open(uri, s.language, 0, text)).To(Succeed())
			m.measure(e, true, "a client that edits the same file", 2*time.Second, func(n int) {
				_ = other.Change(uri, n+1, fmt.Sprintf("%s%s%d\n", text, c.comment, n))
			})
		})
	}
}

// replaceable starts a server in a directory, behind a multiplexer that watches the folders of the workspace; none: the directory.
func (s server) replaceable(t *testing.T, folder string, workspace ...string) *replaceable {
	t.Helper()
	config := s.config(t, folder)
	if len(workspace) > 0 {
		config.Folders = workspace
	}
	directory := func() string { // the first folder, as for Berth, if it exists
		if info, err := os.Stat(config.Folders[0]); err == nil && info.IsDir() {
			return config.Folders[0]
		}
		return folder
	}
	m := &replaceable{start: func() *lspclient.Program { return s.start(t, directory()) }, Mux: mux.New(mux.Options{
		Config: config, Log: t.Logf,
		Watch: mux.WatchDisk,
	})}
	t.Cleanup(func() { m.Quit("the test is over") })
	m.attach()
	return m
}
