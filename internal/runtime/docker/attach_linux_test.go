// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
)

// The attach command of the status works when it is pasted: input reaches the program, and detaching does not stop it.
func TestAttachCommand_WorksInShell(t *testing.T) {
	need.Programs(t, "docker")
	f := newFixture(t)
	p := f.process("typed", 1, "terminal")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("typed", facts.Running)

	command := exec.Command("/bin/sh", "-c", f.AttachCommand("typed"))
	window, err := pty.Start(command)
	f.Expect(err).NotTo(HaveOccurred())
	screen, ended := gbytes.NewBuffer(), make(chan error, 1)
	go func() {
		_, _ = io.Copy(screen, window)
		ended <- command.Wait()
	}()
	// The command does not show earlier output, so send input until the program responds.
	f.Eventually(func() string {
		_, err := io.WriteString(window, "hello\r")
		f.Expect(err).NotTo(HaveOccurred())
		return string(screen.Contents())
	}).WithTimeout(conformance.Timeout).Should(ContainSubstring("got <hello>"))

	_, err = io.WriteString(window, "\x10\x11") // Ctrl-P Ctrl-Q detaches
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive())
	f.Expect(window.Close()).To(Succeed())
	f.Expect(f.observe("typed").Phase).To(Equal(facts.Running))
}

// reads returns a function that returns what the program "asking" has read after a number of questions.
func (f *fixture) reads(uid types.UID) func(asked int) string {
	return func(asked int) string {
		f.Helper()
		report := regexp.MustCompile(fmt.Sprintf(`\b%d: "([^\r]*)"\.\r`, asked))
		var read string
		f.Eventually(func(g Gomega) {
			g.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Text: "p"})).To(Succeed())
			found := report.FindAllStringSubmatch(f.output(uid)(), -1)
			g.Expect(found).NotTo(BeEmpty())
			read = found[len(found)-1][1]
		}).WithTimeout(conformance.Timeout).Should(Succeed())
		return read
	}
}

// oneRound is what the program "asking" reads if all its questions have one answer.
const oneRound = `\x1b[6;4R\x1b[?62;22c\x1b[0n`

// A program that asks while no manager runs has stopped waiting when the next manager reads the question: a late answer would be typed text.
func TestQuestions_AskedWithoutManagerHaveNoLateAnswer(t *testing.T) {
	f := newFixture(t)
	p := f.process("asks", 1, "asking")
	p.Terminal = &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	id := f.await("asks", facts.Running).ContainerID
	f.Eventually(f.reads("asks")).WithArguments(1).WithTimeout(conformance.Timeout).Should(Equal(oneRound))
	f.Expect(f.Close()).To(Succeed())

	engine, err := testEngine.Client()
	f.Expect(err).NotTo(HaveOccurred())
	defer func() { f.Expect(engine.Close()).To(Succeed()) }()
	user, err := engine.ContainerAttach(f.ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true})
	f.Expect(err).NotTo(HaveOccurred())
	_, err = io.WriteString(user.Conn, "a")
	f.Expect(err).NotTo(HaveOccurred())
	f.Eventually(gbytes.BufferReader(user.Reader)).WithTimeout(conformance.Timeout).Should(gbytes.Say("asked 2"))
	user.Close()

	f.open()
	f.Eventually(f.output("asks")).WithTimeout(conformance.Timeout).Should(ContainSubstring("asked 2"))
	f.Expect(f.reads("asks")(2)).To(Equal(oneRound), "the answers to the first questions")
	f.Expect(f.Type(f.ctx, "asks", runtime.Keystrokes{Text: "a"})).To(Succeed())
	f.Eventually(f.reads("asks")).WithArguments(3).WithTimeout(conformance.Timeout).Should(Equal(oneRound + oneRound))
}

// The program that created a container with a terminal, such as docker run -it, may still be attached, and then its terminal answers. A container that was created
// without such a client, or that Berth has started again, has no other terminal.
func TestAdoptedContainer_IsAnsweredByOneSide(t *testing.T) {
	f := newFixture(t)
	for name, test := range map[string]struct {
		attached, running bool
		want              string
	}{
		"foreground": {true, true, ""},
		"background": {false, true, oneRound},
		"stopped":    {true, false, oneRound},
	} {
		made, err := f.client.ContainerCreate(f.ctx, client.ContainerCreateOptions{Name: name, Config: &container.Config{
			Image: testImage, Cmd: []string{"asking"}, Tty: true, OpenStdin: true, AttachStdin: test.attached, AttachStdout: test.attached}})
		f.Expect(err).NotTo(HaveOccurred())
		f.Cleanup(func() {
			_, err := f.client.ContainerRemove(f.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
			f.Expect(err).NotTo(HaveOccurred())
		})
		asked := 1
		if test.running {
			_, err = f.client.ContainerStart(f.ctx, made.ID, client.ContainerStartOptions{})
			f.Expect(err).NotTo(HaveOccurred())
			f.Eventually(func() string {
				log, err := f.client.ContainerLogs(f.ctx, made.ID, client.ContainerLogsOptions{ShowStdout: true})
				f.Expect(err).NotTo(HaveOccurred())
				defer func() { _ = log.Close() }()
				text, err := io.ReadAll(log)
				f.Expect(err).NotTo(HaveOccurred())
				return string(text)
			}).WithTimeout(conformance.Timeout).Should(ContainSubstring("asked 1"))
			asked = 2 // the questions at the start have no answer, because nothing followed the output
		}
		uid := types.UID(name)
		f.Expect(f.Start(f.ctx, f.adoptingProcess(uid, 1, name, adoptRequired))).To(Succeed())
		f.await(uid, facts.Running)
		f.reopen()
		if test.running {
			f.Eventually(f.output(uid)).WithTimeout(conformance.Timeout).Should(ContainSubstring("asked 1"))
			f.Expect(f.Type(f.ctx, uid, runtime.Keystrokes{Text: "a"})).To(Succeed())
		}
		f.Eventually(f.reads(uid)).WithArguments(asked).WithTimeout(conformance.Timeout).Should(Equal(test.want), name)
		f.Consistently(f.reads(uid)).WithArguments(asked).WithTimeout(200*time.Millisecond).Should(Equal(test.want), name)
	}
}
