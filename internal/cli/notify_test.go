// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/notify"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// noDesktop hides the session bus and the state of the user who runs the tests. It returns the new state directory.
func noDesktop(t *testing.T) (state string) {
	t.Helper()
	state = t.TempDir()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("XDG_STATE_HOME", state)
	return state
}

// webhook is a web server that keeps the bodies of requests.
func webhook(t *testing.T) (address string, bodies chan string) {
	t.Helper()
	bodies = make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		bodies <- string(body)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/SECRET", bodies
}

// startNotify runs berth notify. The returned function interrupts it.
func startNotify(t *testing.T, f *fixture, args ...string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- f.run(ctx, append([]string{"notify"}, args...)...) }()
	return func() {
		cancel()
		NewWithT(t).Eventually(done).WithTimeout(timeout).Should(Receive(Equal(exitSignal)), f.err.String)
	}
}

func TestNotify_SendsEachQuestionOnceOverARestart(t *testing.T) {
	g := NewWithT(t)
	noDesktop(t)
	address, bodies := webhook(t)
	plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rename", UID: "uid-plan"}, Status: v1alpha1.PlanStatus{
		CurrentPhase: v1alpha1.PhaseExecute, Attempt: 1, Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAwaitingApproval, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAwaitingApproval, LastTransitionTime: metav1.Now(), Message: "To start Apply, ...",
		}},
	}}
	agent := asking("agent", metav1.ConditionTrue, time.Hour)
	f := newFixture(agent, plan, asking("busy", metav1.ConditionFalse, time.Hour))
	end := startNotify(t, f, "--webhook", address)
	var m notify.Message
	var body string
	g.Eventually(bodies).WithTimeout(timeout).Should(Receive(&body))
	g.Expect(json.Unmarshal([]byte(body), &m)).To(Succeed())
	g.Expect(m.Title).To(Equal("Berth: 2 objects wait for you"))
	g.Expect(m.Questions).To(HaveLen(2))
	g.Expect(m.Questions[0].Name).To(Equal("instance/agent"), "the longest wait first")
	g.Expect(body).NotTo(Or(ContainSubstring("Codex"), ContainSubstring("To start Apply")), "the description stays on this machine")
	end()
	g.Expect(f.err.String()).NotTo(ContainSubstring("SECRET"))

	// The agent asks again, and the plan still waits.
	agent.Status.Conditions[0].LastTransitionTime = metav1.Now()
	g.Expect(f.api.Status().Update(t.Context(), agent)).To(Succeed())
	end = startNotify(t, f, "--webhook", address)
	g.Eventually(bodies).WithTimeout(timeout).Should(Receive(ContainSubstring("Berth: instance/agent waits for you")))
	end()
	g.Expect(bodies).To(BeEmpty())
}

func TestNotify_SendsTheDescriptionOnlyIfAsked(t *testing.T) {
	g := NewWithT(t)
	state := noDesktop(t)
	address, bodies := webhook(t)
	secret := filepath.Join(state, "webhook")
	g.Expect(os.WriteFile(secret, []byte(address+"\n"), 0o600)).To(Succeed())
	f := newFixture(asking("agent", metav1.ConditionTrue, time.Hour))
	end := startNotify(t, f, "-A", "--webhook-file", secret, "--include-text", "--webhook-template", "{{range .Questions}}{{.Text}}{{end}}")
	g.Eventually(bodies).WithTimeout(timeout).Should(Receive(Equal("The terminal shows a question (Codex).")))
	end()

	g.Expect(os.Chmod(secret, 0o644)).To(Succeed())
	g.Expect(f.run(t.Context(), "notify", "--webhook-file", secret)).To(Equal(exitFailure))
	g.Expect(f.err.String()).To(ContainSubstring("--webhook-file: "))
}

func TestNotify_UsesTheTerminalWithoutABus(t *testing.T) {
	g := NewWithT(t)
	noDesktop(t)
	for _, name := range []string{"TERM", "VTE_VERSION", "TMUX"} {
		t.Setenv(name, "")
	}
	screen, tty, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _, _ = screen.Close(), tty.Close() })
	agent := asking("agent", metav1.ConditionTrue, time.Hour)
	agent.Status.Conditions[0].Message = hostile
	f := newFixture(agent)
	f.app.out = tty
	end := startNotify(t, f)
	text := make([]byte, 4096)
	n, err := screen.Read(text)
	g.Expect(err).NotTo(HaveOccurred())
	shown, found := strings.CutPrefix(string(text[:n]), "\x1b]9;Berth: instance/agent waits for you: ")
	g.Expect(found).To(BeTrue(), "%q", text[:n])
	shown, found = strings.CutSuffix(shown, "\x1b\\")
	g.Expect(found).To(BeTrue(), "%q", text[:n])
	g.Expect(shown).To(ContainSubstring("forged line"))
	g.Expect(controlCharacters(shown)).To(BeEmpty())
	end()
	g.Expect(f.err.String()).To(ContainSubstring("notifying by terminal (OSC 9)"))
}

func TestNotify_RefusesWhatCannotNotify(t *testing.T) {
	noDesktop(t)
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no way":               {nil, "no way to notify you: set --command or --webhook-file, or run this command in a terminal or a desktop session"},
		"no bus":               {[]string{"--desktop"}, "cannot notify on the desktop: no D-Bus session bus"},
		"no terminal":          {[]string{"--terminal"}, "cannot notify through the terminal: standard output is not a terminal"},
		"quiet hours":          {[]string{"--command", "true", "--quiet", "22-7"}, "--quiet: "},
		"a remote http URL":    {[]string{"--webhook", "http://example.com/SECRET"}, "must begin with https://"},
		"two URLs":             {[]string{"--webhook", "https://example.com/SECRET", "--webhook-file", "x"}, "use either --webhook or --webhook-file"},
		"a template only":      {[]string{"--webhook-template", "x"}, "needs --webhook or --webhook-file"},
		"a template":           {[]string{"--webhook", "https://example.com/SECRET", "--webhook-template", "{{"}, "template of the webhook: "},
		"a missing file":       {[]string{"--webhook-file", "/nonexistent"}, "--webhook-file: "},
		"an invalid selection": {[]string{"-l", "a b", "--command", "true"}, "label selector"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture()
			g.Expect(f.run(t.Context(), append([]string{"notify"}, tc.args...)...)).To(Equal(exitFailure))
			g.Expect(f.err.String()).To(ContainSubstring(tc.says))
			g.Expect(f.err.String()).NotTo(ContainSubstring("SECRET"))
		})
	}
}

func TestQuestionID_DistinguishesPhasesIncarnationsAndQuestions(t *testing.T) {
	g := NewWithT(t)
	at := time.Now()
	instance := asking("agent", metav1.ConditionTrue, 0)
	plan := &v1alpha1.Plan{Status: v1alpha1.PlanStatus{CurrentPhase: v1alpha1.PhaseExecute, Attempt: 1}}
	ids := map[string]bool{}
	for range 2 {
		ids[questionID(instance, at)], ids[questionID(plan, at)] = true, true
	}
	instance.Status.Incarnation++
	ids[questionID(instance, at)] = true
	for range 2 { // questions within one second
		agent := metav1.NewMicroTime(at.Add(time.Duration(len(ids)) * time.Millisecond))
		instance.Status.Agent = &v1alpha1.AgentStatus{State: v1alpha1.AgentWaiting, Question: "permission", Since: &agent}
		ids[questionID(instance, at)] = true
		instance.Status.Agent.Question, instance.Status.Agent.Source = "plan", v1alpha1.AgentSourceHook
		ids[questionID(instance, at)] = true
	}
	plan.Status.Attempt++
	ids[questionID(plan, at)] = true
	plan.Status.CurrentPhase = v1alpha1.PhaseApply
	ids[questionID(plan, at)] = true
	ids[questionID(plan, at.Add(time.Second))] = true
	g.Expect(ids).To(HaveLen(8))
}

// TestUp_NotifiesOnce runs berth up with notifications twice, while the same question stands.
func TestUp_NotifiesOnce(t *testing.T) {
	g := NewWithT(t)
	noDesktop(t)
	fakeRuntime := fake.New(t.Context(), clock.RealClock{})
	state, told := t.TempDir(), filepath.Join(t.TempDir(), "told")
	up := func() (*fixture, func() int) {
		f := newFixture()
		f.app.newRuntime = persistent(fakeRuntime)
		return f, startUp(t, f, "--state-dir", state, "--assets", assets(t), "--keep",
			"--notify-command", "/bin/sh", "--notify-command", "-c", "--notify-command", `echo "$BERTH_NOTIFY_NAME $BERTH_NOTIFY_REASON" >> "$0"`, "--notify-command", told)
	}
	lines := func() string {
		text, _ := os.ReadFile(told)
		return string(text)
	}
	f, end := up()
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("export KUBECONFIG="), f.err.String)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(state, "kubeconfig"))
	g.Expect(err).NotTo(HaveOccurred())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	first := createReadyInstance(t, g, f, api, "first")
	fakeRuntime.Show(first.UID, "Continue? [y/N] ")
	g.Eventually(lines).WithTimeout(timeout).Should(Equal("instance/first AwaitingInput\n"))
	g.Eventually(func() ([]string, error) { return filepath.Glob(filepath.Join(state, "notify-*.json")) }).WithTimeout(timeout).Should(HaveLen(1), "the program has exited")
	g.Expect(end()).To(BeZero(), f.err.String())

	f, end = up()
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("export KUBECONFIG="), f.err.String)
	second := createReadyInstance(t, g, f, api, "second")
	fakeRuntime.Show(second.UID, "Continue? [y/N] ")
	g.Eventually(lines).WithTimeout(timeout).Should(Equal("instance/first AwaitingInput\ninstance/second AwaitingInput\n"))
	g.Expect(end()).To(BeZero(), f.err.String())
}

func TestDetachedArguments_KeepEachWordOfTheCommand(t *testing.T) {
	g := NewWithT(t)
	command := (&app{}).upCommand()
	g.Expect(command.ParseFlags([]string{"--detach", "--keep", "--notify-command", "tell", "--notify-command", "a, b]", "--notify-quiet=22:00-07:00"})).To(Succeed())
	g.Expect(detachedArguments(command)).To(ConsistOf("up", "--hide-objects", "--keep=true", "--notify-command=tell", "--notify-command=a, b]", "--notify-quiet=22:00-07:00"))
	g.Expect(strings.Join(detachedArguments(command), " ")).To(ContainSubstring("tell --notify-command=a, b]"), "in order")
}

// TestUp_StartsWithoutAWayToNotify checks that a missing session bus, as at the start of a machine, keeps no process from running.
func TestUp_StartsWithoutAWayToNotify(t *testing.T) {
	g := NewWithT(t)
	noDesktop(t)
	f := newFixture()
	beside, err := f.app.plain().besideManager(&upFlags{notify: true, hideObjects: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(beside).To(BeEmpty())
	g.Expect(f.err.String()).To(ContainSubstring("warning: no way to notify you: set --notify-command or --notify-webhook-file"))
	_, err = f.app.plain().besideManager(&upFlags{notify: true, notifying: notifyFlags{quiet: "never"}})
	g.Expect(err).To(MatchError(ContainSubstring("--notify-quiet")), fmt.Sprint(err))
}

// A terminal that is stopped with Ctrl-S accepts no text, for hours perhaps.
func TestNotify_EndsBesideAStoppedTerminal(t *testing.T) {
	g := NewWithT(t)
	noDesktop(t)
	address, bodies := webhook(t)
	master, slave, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = master.Close() })
	_, err = master.Write([]byte{'\x13'})
	g.Expect(err).NotTo(HaveOccurred())
	f := newFixture(asking("agent", metav1.ConditionTrue, time.Hour))
	f.app.out, f.app.err = slave, slave
	end := startNotify(t, f, "--terminal", "--webhook", address)
	g.Eventually(bodies).WithTimeout(timeout).Should(Receive(ContainSubstring("instance/agent")), "the other way is not delayed")
	end()
	g.Expect(f.api.Create(t.Context(), asking("second", metav1.ConditionTrue, time.Hour))).To(Succeed())
	end = startNotify(t, f, "--terminal", "--webhook", address)
	g.Eventually(bodies).WithTimeout(timeout).Should(Receive(ContainSubstring("instance/second")))
	end()
	_, err = master.Write([]byte{'\x11'}) // Ctrl-Q, so that the writers end
	g.Expect(err).NotTo(HaveOccurred())
	go func() { _, _ = io.Copy(io.Discard, master) }()
}
