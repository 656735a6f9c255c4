// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

// answerTimeout is how long Chromium may take for one command. It answers the command to open a page only after the server has responded, and Next compiles the
// page first, which took more than 30 s on a machine that ran another suite.
const answerTimeout = 2 * time.Minute

// page is the only page of a headless Chromium. The tests control it with the Chrome DevTools Protocol: JSON messages over two pipes, each followed by a NUL
// byte.
type page struct {
	to, from *os.File
	messages *bufio.Reader
	session  string
	last     int // the number of the last command
}

// openPage starts Chromium with an empty profile and opens the URL. Chromium is killed at the end of the spec.
func openPage(url string) *page {
	GinkgoHelper()
	need.Programs(GinkgoT(), "chromium")
	profile, err := os.MkdirTemp("", "berth-chromium-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(func() error { return os.RemoveAll(profile) }).Should(Succeed()) })
	commands, to, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	from, answers, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())

	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+profile, "--remote-debugging-pipe")
	cmd.Env = suiteBerth.environment()
	cmd.ExtraFiles = []*os.File{commands, answers} // Chromium reads commands from file descriptor 3 and writes answers to 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	Expect(cmd.Start()).To(Succeed())
	Expect(commands.Close()).To(Succeed())
	Expect(answers.Close()).To(Succeed())
	p := &page{to: to, from: from, messages: bufio.NewReader(from)}
	DeferCleanup(func() {
		// The PID still identifies Chromium and the process group that Chromium leads, because Wait has not been called yet.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_, _ = to.Close(), from.Close()
	})

	var target struct{ TargetID string }
	Expect(p.command("Target.createTarget", map[string]any{"url": "about:blank"}, &target)).To(Succeed())
	var session struct{ SessionID string }
	Expect(p.command("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)).To(Succeed())
	p.session = session.SessionID
	var navigated struct{ ErrorText string }
	Expect(p.command("Page.navigate", map[string]any{"url": url}, &navigated)).To(Succeed())
	Expect(navigated.ErrorText).To(BeEmpty(), url)
	return p
}

// command sends a command and decodes its result. Events that arrive before the result are dropped.
func (p *page) command(method string, params map[string]any, result any) error {
	p.last++
	message, err := json.Marshal(struct {
		ID        int            `json:"id"`
		Method    string         `json:"method"`
		Params    map[string]any `json:"params"`
		SessionID string         `json:"sessionId,omitempty"`
	}{p.last, method, params, p.session})
	if err != nil {
		return err
	}
	if _, err := p.to.Write(append(message, 0)); err != nil {
		return err
	}
	if err := p.from.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	for {
		text, err := p.messages.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var answer struct {
			ID     int
			Error  json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &answer); err != nil {
			return err
		}
		switch {
		case answer.ID != p.last:
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error)
		default:
			return json.Unmarshal(answer.Result, result)
		}
	}
}

// evaluate returns the value of an expression in the page, as text.
func (p *page) evaluate(expression string) (string, error) {
	var evaluated struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	err := p.command("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &evaluated)
	if err == nil && evaluated.ExceptionDetails != nil {
		err = fmt.Errorf("%s: %s", expression, evaluated.ExceptionDetails)
	}
	return fmt.Sprint(evaluated.Result.Value), err
}

// text returns the text that the page shows.
func (p *page) text() (string, error) { return p.evaluate("document.body.innerText") }
