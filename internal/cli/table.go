// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
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
	waiting                               string   // since when and for what the object waits for a person
	explains                              bool     // the output of the process may explain why the object is not ready
}

// rowOf returns the row of an object of any kind that berth status shows.
func rowOf(object client.Object) row {
	address, conditions := stateOf(object)
	r := row{
		namespace: object.GetNamespace(), name: nameOf(object), ready: "Unknown", reason: v1alpha1.ReasonPending, address: clean(address), restarts: "0",
		created: object.GetCreationTimestamp().Time, host: object.GetLabels()[v1alpha1.LabelHost],
	}
	r.setReady(conditions)
	if object.GetDeletionTimestamp() != nil {
		r.ready, r.reason = "False", v1alpha1.ReasonDeleting
	}
	if plan, is := object.(*v1alpha1.Plan); is {
		r.restarts = strconv.Itoa(int(max(plan.Status.Attempt, 1) - 1))
	}
	if object, is := object.(process.Object); is {
		r.setProcess(object)
	}
	if w, waits := waiterOf(object); waits {
		r.waiting = "since " + w.Since.UTC().Format(time.RFC3339) + ": " + clean(w.Message)
	}
	return r
}

func rowsOf(objects []client.Object) []row {
	rows := make([]row, 0, len(objects))
	for _, object := range objects {
		rows = append(rows, rowOf(object))
	}
	return rows
}

// setProcess fills in what only objects with a process have.
func (r *row) setProcess(object process.Object) {
	status := object.GetProcessStatus()
	r.restarts = strconv.FormatInt(status.RestartCount, 10)
	r.runtime = string(cmp.Or(podspec.TypeOf(object), v1alpha1.RuntimeHost))
	r.host = cmp.Or(status.HostName, r.host)
	r.explains = r.ready != "True" && r.reason != v1alpha1.ReasonDeleting && object.GetProcessSpec().State != v1alpha1.StateStopped &&
		(status.Process != nil || status.LastExit != nil && lifecycle.Ran(status.LastExit))
	if status.Process != nil && status.Process.PID > 0 {
		r.pid = strconv.FormatInt(status.Process.PID, 10)
	}
}

// urgent are the conditions of a Ready object that lists show.
var urgent = []string{v1alpha1.ConditionConflict + "=True", v1alpha1.ConditionPortVerified + "=False"}

// setReady fills in the row from the condition Ready and the conditions that add something to it.
func (r *row) setReady(conditions []metav1.Condition) {
	condition := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if condition == nil {
		return
	}
	r.ready, r.reason = string(condition.Status), clean(condition.Reason)
	atRest := []string{v1alpha1.ReasonStopped, v1alpha1.ReasonCompleted, v1alpha1.ReasonDisabled} // with these reasons, the message explains why nothing runs
	if condition.Status != metav1.ConditionTrue || slices.Contains(atRest, condition.Reason) {
		r.message = clean(condition.Message)
	}
	for _, note := range []string{
		v1alpha1.ConditionConflict, v1alpha1.ConditionPortVerified, v1alpha1.ConditionAwaitingInput, v1alpha1.ConditionIndexed, v1alpha1.ConditionHealthy, v1alpha1.ConditionDriftDetected,
	} {
		c := meta.FindStatusCondition(conditions, note)
		if c != nil && c.Reason != v1alpha1.ReasonSettled && c.Message != "" && clean(c.Message) != r.message {
			text := fmt.Sprintf("%s=%s: %s", c.Type, c.Status, clean(c.Message))
			if slices.Contains(urgent, c.Type+"="+string(c.Status)) && r.message == "" {
				r.message = text
				continue
			}
			r.notes = append(r.notes, text)
		}
	}
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
	var cells [][]string
	add := func(namespace string, line []string, wide ...string) {
		if with.wide {
			line = append(line, wide...)
		}
		if with.namespace {
			line = append([]string{namespace}, line...)
		}
		cells = append(cells, line)
	}
	add("NAMESPACE", []string{"NAME", "READY", "REASON", "ADDRESS", "RESTARTS", "PID", "AGE"}, "RUNTIME", "HOST")
	for _, r := range rows {
		age := "<unknown>"
		if !r.created.IsZero() {
			age = ageOf(r.created, now)
		}
		add(r.namespace, []string{r.name, r.ready, r.reason, r.address, r.restarts, r.pid, age}, r.runtime, r.host)
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
	if screen := findWindow(nil, raw); screen.out >= 0 {
		b.size = func() (int, int) {
			if size := screen.size(); size != nil {
				return int(size.Columns), int(size.Rows)
			}
			return 80, 24
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
	if _, err := io.WriteString(b.raw, up+b.last+"\x1b[J"); err != nil {
		b.last, b.drawn = "", 0 // draw it again, below what the terminal shows
	}
}

func (b *statusTable) tell(rows []row, now time.Time) {
	entries := make([]entry, 0, len(rows))
	for _, r := range rows {
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
		entries = append(entries, entry{r.namespace + " " + r.name, strings.Join(words, " ")})
	}
	b.tellChanges(entries, "deleted", now)
}

// entry is one line about an object.
type entry struct{ key, text string } // key is NAMESPACE KIND/NAME

// tellChanges prints the entries that have changed and, for each missing one, its name and the word gone.
func (b *statusTable) tellChanges(entries []entry, gone string, now time.Time) {
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.key] = true
		b.line(e.key, e.text, now)
	}
	for key := range b.said {
		if !seen[key] {
			delete(b.said, key)
			if !b.namespaces {
				_, key, _ = strings.Cut(key, " ")
			}
			_, _ = fmt.Fprintf(b.out, "%s %s %s\n", now.Format(time.TimeOnly), key, gone)
		}
	}
}

func (b *statusTable) line(key, text string, now time.Time) {
	if b.said[key] == text {
		return
	}
	if _, err := fmt.Fprintf(b.out, "%s %s\n", now.Format(time.TimeOnly), text); err == nil {
		b.said[key] = text
	}
}
