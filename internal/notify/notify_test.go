// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// evil sets the title of a terminal, starts another line, reverses text, and contains markup.
const evil = "a\x1b]0;OWNED\a\u009b31m\u202e\n<b>bold</b> & ;x"

// recorder is a sender that keeps its messages.
type recorder struct {
	sent []Message
	err  error
}

func (r *recorder) String() string      { return "test" }
func (r *recorder) Destination() string { return "test" }

func (r *recorder) Send(_ context.Context, m Message) error {
	if r.err == nil {
		r.sent = append(r.sent, m)
	}
	return r.err
}

// night is a time of which the local time of day is 23:00.
var night = time.Date(2026, 11, 29, 23, 0, 0, 0, time.Local)

func question(name string) Question {
	return Question{ID: name, Namespace: "default", Name: "instance/" + name, Reason: "AwaitingInput", Since: night.Add(-time.Hour), Text: "The terminal shows a question (Codex)."}
}

func questions(count int) (all []Question) {
	for i := range count {
		all = append(all, question(fmt.Sprint("agent-", i)))
	}
	return all
}

// newNotifier returns a notifier that sends to the recorder, and the lines that it has reported.
func newNotifier(to *recorder) (*Notifier, *[]string) {
	reported := &[]string{}
	return &Notifier{Channels: []Channel{{to, true}}, Report: func(format string, args ...any) { *reported = append(*reported, fmt.Sprintf(format, args...)) }}, reported
}

func TestNotifier_SendsEachQuestionOnce(t *testing.T) {
	g := NewWithT(t)
	to := &recorder{}
	n, reported := newNotifier(to)
	for i := range 20 {
		n.Update(t.Context(), questions(1), night.Add(time.Duration(i)*time.Second))
	}
	g.Expect(to.sent).To(HaveLen(1))
	g.Expect(to.sent[0].Title).To(Equal("Berth: instance/agent-0 waits for you"))
	g.Expect(to.sent[0].Body).To(Equal("AwaitingInput in namespace default since 22:00:00: The terminal shows a question (Codex)."))
	g.Expect(*reported).To(HaveLen(1))

	n.Update(t.Context(), nil, night.Add(time.Minute)) // an older state from a cache
	n.Update(t.Context(), questions(1), night.Add(2*time.Minute))
	g.Expect(to.sent).To(HaveLen(1))
	n.Update(t.Context(), []Question{question("agent-0"), question("other")}, night.Add(3*time.Minute))
	g.Expect(to.sent).To(HaveLen(2), "another question")
	g.Expect(to.sent[1].Questions).To(HaveLen(1))
}

func TestNotifier_SendsOneMessageForManyQuestions(t *testing.T) {
	g := NewWithT(t)
	to := &recorder{}
	n, _ := newNotifier(to)
	n.Update(t.Context(), questions(500), night)
	g.Expect(to.sent).To(HaveLen(1))
	m := to.sent[0]
	g.Expect(m.Title).To(Equal("Berth: 500 objects wait for you"))
	g.Expect(m.Body).To(And(HavePrefix("instance/agent-0: AwaitingInput in namespace default since"), HaveSuffix("\nand 495 more")))
	g.Expect(m.Questions).To(HaveLen(maxQuestions))
	g.Expect(m.Omitted).To(Equal(480))

	// Questions that arise within the gap become one message.
	for i := range 5 {
		n.Update(t.Context(), questions(501+i), night.Add(time.Duration(i)*time.Second))
	}
	g.Expect(to.sent).To(HaveLen(1))
	n.Update(t.Context(), questions(505), night.Add(gap))
	g.Expect(to.sent).To(HaveLen(2))
	g.Expect(to.sent[1].Questions).To(HaveLen(5))
}

func TestNotifier_RemembersOverARestart(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	to := &recorder{}
	start := func() (*Notifier, *Memory) {
		n, _ := newNotifier(to)
		memory, err := OpenMemory(dir, "host", "namespace")
		g.Expect(err).NotTo(HaveOccurred())
		n.Memory = memory
		return n, memory
	}
	n, memory := start()
	n.Update(t.Context(), questions(3), night)
	g.Expect(to.sent).To(HaveLen(1))
	_, err := OpenMemory(dir, "host", "namespace")
	g.Expect(err).To(MatchError(ErrInUse))
	_, err = OpenMemory(dir, "another host", "namespace")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(memory.Close()).To(Succeed())

	n, memory = start()
	n.Update(t.Context(), questions(4), night.Add(time.Hour))
	g.Expect(to.sent).To(HaveLen(2))
	g.Expect(to.sent[1].Title).To(ContainSubstring("agent-3"), "the others were sent before the restart")
	g.Expect(memory.Close()).To(Succeed())

	n, memory = start()
	many := questions(maxRemembered + 10)
	n.Update(t.Context(), many, night.Add(2*time.Hour))
	g.Expect(memory.load()).To(HaveLen(maxRemembered))
	g.Expect(memory.Close()).To(Succeed())
}

func TestNotifier_IsSilentInQuietHours(t *testing.T) {
	g := NewWithT(t)
	to := &recorder{}
	n, _ := newNotifier(to)
	var err error
	n.Quiet, err = ParseQuiet("22:00-07:00")
	g.Expect(err).NotTo(HaveOccurred())
	n.Update(t.Context(), questions(2), night)
	n.Update(t.Context(), questions(2), night.Add(8*time.Hour-time.Second))
	g.Expect(to.sent).To(BeEmpty())
	n.Update(t.Context(), questions(1), night.Add(8*time.Hour))
	g.Expect(to.sent).To(HaveLen(1), "what still waits")
	g.Expect(to.sent[0].Questions).To(HaveLen(1))
}

func TestQuiet_ContainsTimesOfDay(t *testing.T) {
	g := NewWithT(t)
	at := func(clock string) time.Time {
		parsed, err := time.Parse("15:04", clock)
		g.Expect(err).NotTo(HaveOccurred())
		return parsed
	}
	for text, expected := range map[string]map[string]bool{
		"22:00-07:00": {"21:59": false, "22:00": true, "00:00": true, "06:59": true, "07:00": false, "12:00": false},
		"12:30-13:30": {"12:29": false, "12:30": true, "13:29": true, "13:30": false, "00:00": false},
		"00:00-23:59": {"00:00": true, "23:58": true, "23:59": false},
		"":            {"00:00": false, "12:00": false},
	} {
		quiet, err := ParseQuiet(text)
		g.Expect(err).NotTo(HaveOccurred())
		for clock, contained := range expected {
			g.Expect(quiet.Contains(at(clock))).To(Equal(contained), "%s in %s", clock, text)
		}
	}
	for _, text := range []string{"22:00", "22-7", "24:00-07:00", "07:00-07:00", "a-b", "-"} {
		_, err := ParseQuiet(text)
		g.Expect(err).To(MatchError(ContainSubstring("FROM-TO")), text)
	}
}

func TestNotifier_RetriesRarelyWhileNothingAcceptsMessages(t *testing.T) {
	g := NewWithT(t)
	to := &recorder{err: errors.New("no service")}
	n, reported := newNotifier(to)
	attempts := &counter{recorder: to}
	n.Channels[0].Sender = attempts
	for i := range 24 * 60 * 60 {
		n.Update(t.Context(), questions(1), night.Add(time.Duration(i)*time.Second))
	}
	g.Expect(attempts.calls).To(BeNumerically("~", 24*2+5, 3))
	g.Expect(*reported).To(Equal([]string{"cannot notify by test: no service"}), "each cause once")
	to.err = nil
	n.Update(t.Context(), questions(1), night.Add(25*time.Hour))
	g.Expect(to.sent).To(HaveLen(1), "the question was kept")
}

func TestNotifier_RemembersWhatWasSentDuringItsShutdown(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	to := &recorder{}
	n, reported := newNotifier(to)
	n.Channels = append(n.Channels, Channel{&recorder{err: context.Canceled}, false})
	cancel()
	for i := range 3 {
		n.Update(ctx, questions(1), night.Add(time.Duration(i)*time.Minute))
	}
	g.Expect(to.sent).To(HaveLen(1))
	g.Expect(*reported).To(HaveLen(1), "no failure is reported")
}

type counter struct {
	*recorder
	calls int
}

func (c *counter) Send(ctx context.Context, m Message) error {
	c.calls++
	return c.recorder.Send(ctx, m)
}

func TestNotifier_AFailedChannelDoesNotRepeatTheOthers(t *testing.T) {
	g := NewWithT(t)
	works, fails := &recorder{}, &recorder{err: errors.New("down")}
	n, reported := newNotifier(works)
	n.Channels = append(n.Channels, Channel{fails, false})
	for i := range 100 {
		n.Update(t.Context(), questions(1), night.Add(time.Duration(i)*time.Minute))
	}
	g.Expect(works.sent).To(HaveLen(1))
	g.Expect(*reported).To(ContainElement("cannot notify by test: down"))
}

func TestNotifier_WaitsUntilAQuestionStandsLongEnough(t *testing.T) {
	g := NewWithT(t)
	to := &recorder{}
	n, _ := newNotifier(to)
	q := question("agent")
	n.After = 2 * time.Hour
	n.Update(t.Context(), []Question{q}, q.Since.Add(time.Hour))
	g.Expect(to.sent).To(BeEmpty())
	n.Update(t.Context(), []Question{q}, q.Since.Add(2*time.Hour))
	g.Expect(to.sent).To(HaveLen(1))
	n, to.sent = &Notifier{Channels: n.Channels, Report: n.Report}, nil
	n.Update(t.Context(), []Question{q}, q.Since.Add(-time.Second))
	g.Expect(to.sent).To(HaveLen(1), "the clock of the manager is ahead")
}

func TestMessage_ContainsTheTextOnlyIfPermitted(t *testing.T) {
	g := NewWithT(t)
	q := question("agent")
	q.Text = evil + strings.Repeat("x", 100_000)
	with, without := newMessage([]Question{q, q}, true), newMessage([]Question{q, q}, false)
	g.Expect(with.Body).To(ContainSubstring("OWNED"))
	g.Expect(len(with.Body)).To(BeNumerically("<=", maxText))
	g.Expect(with.Body).NotTo(ContainSubstring("\x1b"))
	g.Expect(strings.Count(with.Body, "\n")).To(Equal(1), "one line for each question")
	g.Expect(fmt.Sprintf("%+v", without)).NotTo(Or(ContainSubstring("OWNED"), ContainSubstring("xxx")))
	g.Expect(without.ID).To(Equal(with.ID))
}
