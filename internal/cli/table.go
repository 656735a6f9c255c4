// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// row holds what a table shows about one object.
type row struct {
	namespace, name                       string
	ready, reason, address, restarts, pid string
	created                               time.Time
	message                               string   // why the object is not ready
	notes                                 []string // the messages of other conditions
	host                                  string   // the host that runs the object, or that should run it
	runtime                               string   // the runtime of an object that has a process
	explains                              bool     // the output of the process may explain why the object is not ready
}

func makeRow(kind *kind, object process.Object) row {
	status := object.GetProcessStatus()
	r := row{
		namespace: object.GetNamespace(), name: kind.singular + "/" + object.GetName(),
		ready: "Unknown", reason: v1alpha1.ReasonPending, address: clean(kind.address(object)),
		restarts: strconv.FormatInt(status.RestartCount, 10), created: object.GetCreationTimestamp().Time,
	}
	r.setReady(status.Conditions)
	if object.GetDeletionTimestamp() != nil {
		r.ready, r.reason = "False", v1alpha1.ReasonDeleting
	}
	r.runtime = string(cmp.Or(runtimeType(object), v1alpha1.RuntimeHost))
	r.host = cmp.Or(status.HostName, object.GetLabels()[v1alpha1.LabelHost])
	r.explains = r.ready != "True" && r.reason != v1alpha1.ReasonDeleting && object.GetProcessSpec().State != v1alpha1.StateStopped &&
		(status.Process != nil || status.LastExit != nil && lifecycle.Ran(status.LastExit))
	if status.Process != nil && status.Process.PID > 0 {
		r.pid = strconv.FormatInt(status.Process.PID, 10)
	}
	return r
}

func sortRows(rows []row) {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
}

// tableColumns are the optional columns of a table.
type tableColumns struct {
	namespace bool
	wide      bool // RUNTIME and HOST
}

// lines formats the rows as a table, followed by the reasons why objects are not ready.
func lines(rows []row, now time.Time, with tableColumns) []string {
	if len(rows) == 0 {
		return nil
	}
	cells := [][]string{{"NAME", "READY", "REASON", "ADDRESS", "RESTARTS", "PID", "AGE"}}
	for _, r := range rows {
		age := "<unknown>"
		if !r.created.IsZero() {
			age = duration.HumanDuration(max(0, now.Sub(r.created)))
		}
		cells = append(cells, []string{r.name, r.ready, r.reason, r.address, r.restarts, r.pid, age})
	}
	if with.wide {
		cells[0] = append(cells[0], "RUNTIME", "HOST")
		for i, r := range rows {
			cells[i+1] = append(cells[i+1], r.runtime, r.host)
		}
	}
	if with.namespace {
		cells[0] = append([]string{"NAMESPACE"}, cells[0]...)
		for i, r := range rows {
			cells[i+1] = append([]string{r.namespace}, cells[i+1]...)
		}
	}
	laid := align(cells)
	for _, r := range rows {
		if r.message != "" {
			laid = append(laid, "  "+r.name+": "+r.message)
		}
	}
	return laid
}

func align(cells [][]string) []string {
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, cell := range line {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	laid := make([]string, 0, len(cells))
	for _, line := range cells {
		var text strings.Builder
		for i, cell := range line {
			text.WriteString(cell)
			if i < len(line)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+3))
			}
		}
		laid = append(laid, strings.TrimRight(text.String(), " "))
	}
	return laid
}

// statusTable shows rows repeatedly: in place on a terminal, otherwise as one line for each changed row.
type statusTable struct {
	// out receives readable text. raw is the same stream without filtering, for cursor movement.
	out, raw   io.Writer
	namespaces bool
	// size returns width and height of the terminal; nil if the output is not a terminal.
	size  func() (int, int)
	drawn int // number of lines on the terminal
	last  string
	said  map[string]string
}

func newBoard(raw io.Writer, namespaces bool) *statusTable {
	b := &statusTable{out: &plainWriter{raw}, raw: raw, namespaces: namespaces, said: map[string]string{}}
	if file, ok := raw.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		b.size = func() (int, int) {
			width, height, err := term.GetSize(int(file.Fd()))
			if err != nil || width <= 0 || height <= 0 {
				return 80, 24
			}
			return width, height
		}
	}
	return b
}

func (b *statusTable) show(rows []row, now time.Time) {
	sortRows(rows)
	if b.size != nil {
		b.draw(lines(rows, now, tableColumns{namespace: b.namespaces}))
		return
	}
	b.tell(rows, now)
}

// draw replaces the table on the terminal. It truncates lines to the width and the table to the height of the terminal, because lines that have scrolled out of
// view cannot be replaced.
func (b *statusTable) draw(table []string) {
	width, height := b.size()
	if len(table) == 0 {
		table = []string{"no objects yet"}
	}
	if room := max(height-1, 2); len(table) > room {
		more := len(table) - room + 1
		table = append(slices.Clone(table[:room-1]), fmt.Sprintf("… and %d more lines; see berth status", more))
	}
	var text strings.Builder
	for _, line := range table {
		text.WriteString(ansi.Truncate(clean(line), width-1, "…") + "\x1b[K\n")
	}
	if text.String() == b.last {
		return
	}
	b.last = text.String()
	up := ""
	if b.drawn > 0 {
		up = fmt.Sprintf("\x1b[%dA", b.drawn)
	}
	b.drawn = len(table)
	_, _ = io.WriteString(b.raw, up+b.last+"\x1b[J")
}

func (b *statusTable) tell(rows []row, now time.Time) {
	seen := map[string]bool{}
	for _, r := range rows {
		key := r.namespace + " " + r.name
		seen[key] = true
		words := []string{r.name, "Ready=" + r.ready, r.reason}
		if b.namespaces {
			words = append([]string{r.namespace}, words...)
		}
		if r.pid != "" {
			words = append(words, "pid="+r.pid)
		}
		if r.restarts != "0" {
			words = append(words, "restarts="+r.restarts)
		}
		if r.address != "" {
			words = append(words, r.address)
		}
		if r.message != "" {
			words = append(words, "("+r.message+")")
		}
		b.line(key, strings.Join(words, " "), now)
	}
	for key := range b.said {
		if !seen[key] {
			delete(b.said, key)
			if !b.namespaces {
				_, key, _ = strings.Cut(key, " ")
			}
			_, _ = fmt.Fprintf(b.out, "%s %s deleted\n", now.Format(time.TimeOnly), key)
		}
	}
}

func (b *statusTable) line(key, text string, now time.Time) {
	if b.said[key] == text {
		return
	}
	b.said[key] = text
	_, _ = fmt.Fprintf(b.out, "%s %s\n", now.Format(time.TimeOnly), text)
}
