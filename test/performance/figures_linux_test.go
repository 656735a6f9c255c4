// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// figure is one row of the final table.
type figure struct {
	what, limit, measured string
	missed                bool
}

var (
	figuresMu sync.Mutex
	figures   []figure
)

// addFigure adds a figure without a limit.
func addFigure(what, format string, args ...any) {
	appendFigure(figure{what: what, limit: "-", measured: fmt.Sprintf(format, args...)})
}

// addLimitedFigure adds a figure with a limit that is not asserted. The table marks the figure if it exceeds the limit.
func addLimitedFigure(what string, measured, limit float64, unit string) {
	appendFigure(figure{what: what, limit: fmt.Sprintf("≤ %.4g%s", limit, unit), measured: fmt.Sprintf("%.3g%s", measured, unit), missed: measured > limit})
}

func appendFigure(f figure) {
	figuresMu.Lock()
	defer figuresMu.Unlock()
	figures = append(figures, f)
	fmt.Printf("    %s: %s (target: %s)%s\n", f.what, f.measured, f.limit, f.verdict())
}

// verdict returns a mark if the figure exceeds its limit, and otherwise an empty string.
func (f figure) verdict() string {
	if f.missed {
		return " MISSED"
	}
	return ""
}

// expectAtMost adds a figure with a limit. It fails the test if measured exceeds limit * room. The factor room is the allowance for noise.
func expectAtMost(t *testing.T, what string, measured, limit, room float64, unit string) {
	t.Helper()
	addLimitedFigure(what, measured, limit, unit)
	if measured > limit*room {
		t.Errorf("%s: %.3g%s is more than %.4g%s, even with room for noise (%.4g%s)", what, measured, unit, limit, unit, limit*room, unit)
	}
}

// printFigures prints the table.
func printFigures() {
	out := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	defer func() { _ = out.Flush() }()
	_, _ = fmt.Fprintln(out, "\nfigure\ttarget\tmeasured")
	for _, f := range figures {
		_, _ = fmt.Fprintf(out, "%s\t%s\t%s%s\n", f.what, f.limit, f.measured, f.verdict())
	}
}

// rounds is the number of times that each ratio is measured; the result is the median.
const rounds = 3

// median returns the median of values.
func median(values []float64) float64 { return percentile(values, 50) }

// percentile returns the smallest value v such that at least percent % of the values are at most v. It returns 0 if there are no values.
func percentile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	at := (len(sorted)*percent + 99) / 100
	return sorted[max(at, 1)-1]
}

// milliseconds converts d to milliseconds.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
