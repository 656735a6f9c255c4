// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package notify tells a person that objects wait for an answer: on the desktop, in a terminal, by a command or by a webhook.
//
// A Notifier receives all questions that stand, again and again, and sends one message for the new ones. It remembers in a file what it has sent.
package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/printable"
)

// Question is an object that waits for a person. Its JSON is what commands and webhooks receive.
type Question struct {
	// ID identifies the question: the same question has the same ID in every program that reads the object.
	ID        string    `json:"-"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`   // KIND/NAME
	Reason    string    `json:"reason"` // AwaitingInput or AwaitingApproval
	Since     time.Time `json:"since"`
	// Text describes the question. A message for another machine contains it only if the user asked for that.
	Text string `json:"text,omitempty"`
}

// Limits of a message.
const (
	maxQuestions = 20   // questions that a message lists; it counts the others
	maxLines     = 5    // questions that its body lists
	maxTitle     = 200  // bytes
	maxText      = 1000 // bytes of the text of a question, and of the body
)

// Message is one notification for a person.
type Message struct {
	// ID is the same for each attempt to send the message.
	ID        string     `json:"id"`
	Title     string     `json:"title"` // one line
	Body      string     `json:"body"`
	Questions []Question `json:"questions"`        // the longest wait first
	Omitted   int        `json:"omitted,omitzero"` // questions that are not listed
}

// newMessage returns the message about the questions. Its text is printable, because another user may have chosen parts of it.
func newMessage(questions []Question, withText bool) Message {
	m := Message{Title: title(questions), Omitted: max(0, len(questions)-maxQuestions)}
	id := sha256.New()
	for _, q := range questions {
		_, _ = id.Write([]byte(q.ID + "\n"))
	}
	m.ID = hex.EncodeToString(id.Sum(nil)[:16])
	var lines []string
	for _, q := range questions[:min(len(questions), maxQuestions)] {
		q.Namespace, q.Name, q.Reason = printable.Line(q.Namespace), printable.Line(q.Name), printable.Line(q.Reason)
		q.Text = printable.Shorten(printable.Line(q.Text), maxText)
		if !withText {
			q.Text = ""
		}
		m.Questions = append(m.Questions, q)
		if len(lines) < maxLines {
			lines = append(lines, printable.Shorten(line(q, len(questions) > 1), maxText/min(len(questions), maxLines+1)-1)) // with its line feed
		}
	}
	if more := len(questions) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	m.Body = strings.Join(lines, "\n")
	return m
}

func title(questions []Question) string {
	if len(questions) > 1 {
		return fmt.Sprintf("Berth: %d objects wait for you", len(questions))
	}
	return printable.Shorten(printable.Line("Berth: "+questions[0].Name+" waits for you"), maxTitle)
}

// line describes one question in a body. named adds the name, which the title of a message about a single question contains.
func line(q Question, named bool) string {
	words := q.Reason + " in namespace " + q.Namespace + " since " + q.Since.Local().Format(time.TimeOnly)
	if named {
		words = q.Name + ": " + words
	}
	if q.Text != "" {
		words += ": " + q.Text
	}
	return words
}

// Sender sends messages in one way.
type Sender interface {
	// Send returns once the message has been accepted, or an error. It bounds the time that it takes.
	Send(ctx context.Context, message Message) error
	// String names the way in messages. It contains no secret.
	String() string
	// Destination identifies where messages go, so that each destination has its own memory. It can contain a secret, and is only hashed.
	Destination() string
}

// Channel is a sender and what it may send.
type Channel struct {
	Sender
	// Text permits the text of questions.
	Text bool
}

const (
	// gap is the minimum interval between two messages. Questions that arise meanwhile become one message.
	gap = 5 * time.Second
	// firstRetry and lastRetry are the intervals between attempts while no channel accepts a message.
	firstRetry, lastRetry = time.Minute, 30 * time.Minute
	// remembered is how long a question is remembered after it has gone, because an API server may answer with an older state.
	remembered = 10 * time.Minute
	// maxRemembered bounds the questions in the file.
	maxRemembered = 5000
)

// Notifier sends one message for each question.
type Notifier struct {
	Channels []Channel
	// Quiet is the time of day at which nothing is sent. Questions that still stand afterwards are sent then.
	Quiet Quiet
	// After is how long an object must have waited.
	After time.Duration
	// Memory keeps what was sent. nil: only in memory.
	Memory *Memory
	// Report is called with what was sent, and with failures. It gets the text without the limits of the channels.
	Report func(format string, args ...any)

	sent     map[string]time.Time // by ID of a question: when the question last stood
	next     time.Time            // nothing is sent before
	failures int
	failed   map[string]string // by channel: the last failure
}

// Update sends a message about the questions that are new and were not sent before.
func (n *Notifier) Update(ctx context.Context, questions []Question, now time.Time) {
	n.recall(now)
	var fresh []Question
	for _, q := range questions {
		if _, known := n.sent[q.ID]; known {
			n.sent[q.ID] = now
		} else if n.After == 0 || now.Sub(q.Since) >= n.After { // the clock of the manager may be ahead
			fresh = append(fresh, q)
		}
	}
	maps.DeleteFunc(n.sent, func(_ string, stood time.Time) bool { return now.Sub(stood) > remembered })
	if len(fresh) == 0 || n.Quiet.Contains(now) || now.Before(n.next) {
		return
	}
	if !n.send(ctx, fresh) {
		n.next = now.Add(min(firstRetry<<min(n.failures, 10), lastRetry))
		n.failures++
		return
	}
	n.next, n.failures = now.Add(gap), 0
	for _, q := range fresh {
		n.sent[q.ID] = now
	}
	n.remember()
}

// send reports whether at least one channel has accepted the message.
func (n *Notifier) send(ctx context.Context, fresh []Question) bool {
	errs := make([]error, len(n.Channels))
	var sending errgroup.Group
	for i, channel := range n.Channels {
		sending.Go(func() error {
			errs[i] = channel.Send(ctx, newMessage(fresh, channel.Text))
			return nil
		})
	}
	_ = sending.Wait()
	accepted := false
	for i, err := range errs {
		name := n.Channels[i].String()
		if err == nil {
			accepted = true
			delete(n.failed, name)
		} else if text := err.Error(); n.failed[name] != text && ctx.Err() == nil { // no failure at the end of the notifier
			n.failed[name] = text
			n.Report("cannot notify by %s: %v", name, err)
		}
	}
	if accepted {
		n.Report("%s", newMessage(fresh, true).summary())
	}
	return accepted
}

// summary is the message in one line.
func (m Message) summary() string { return m.Title + ": " + strings.ReplaceAll(m.Body, "\n", "; ") }

// recall reads the memory once.
func (n *Notifier) recall(now time.Time) {
	if n.sent != nil {
		return
	}
	n.sent, n.failed = map[string]time.Time{}, map[string]string{}
	if n.Memory == nil {
		return
	}
	known, err := n.Memory.load()
	if err != nil {
		n.Report("cannot read which questions were sent, so some may be sent again: %v", err)
	}
	for _, id := range known {
		n.sent[id] = now
	}
}

// remember writes the memory: the questions that stood most recently.
func (n *Notifier) remember() {
	if n.Memory == nil {
		return
	}
	ids := slices.SortedFunc(maps.Keys(n.sent), func(a, b string) int { return n.sent[b].Compare(n.sent[a]) })
	if err := n.Memory.save(ids[:min(len(ids), maxRemembered)]); err != nil {
		n.Report("cannot record which questions were sent, so they are sent again after a restart: %v", err)
	}
}

// Quiet is a time of day at which nothing is sent, in minutes since midnight. The zero value never is.
type Quiet struct{ from, to int }

// ParseQuiet parses FROM-TO, such as 22:00-07:00. It accepts an empty text for never.
func ParseQuiet(text string) (Quiet, error) {
	if text == "" {
		return Quiet{}, nil
	}
	from, to, _ := strings.Cut(text, "-")
	begin, err1 := time.Parse("15:04", from)
	end, err2 := time.Parse("15:04", to)
	if err := errors.Join(err1, err2); err != nil || begin.Equal(end) {
		return Quiet{}, fmt.Errorf("quiet time %q is not FROM-TO with two different times of day, such as 22:00-07:00", text)
	}
	return Quiet{minute(begin), minute(end)}, nil
}

func minute(t time.Time) int { return t.Hour()*60 + t.Minute() }

// Contains reports whether a time is quiet, in the time zone of the time. FROM is quiet, TO is not.
func (q Quiet) Contains(t time.Time) bool {
	at := minute(t)
	if q.from > q.to { // over midnight
		return at >= q.from || at < q.to
	}
	return at >= q.from && at < q.to
}
