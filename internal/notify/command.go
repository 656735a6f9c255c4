// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/printable"
)

const (
	// commandTimeout bounds a command. It is then killed with the processes of its group.
	commandTimeout = 30 * time.Second
	// maxStderr bounds the standard error of a command that is kept, in bytes.
	maxStderr = 1 << 10
)

// Command runs a program for each message, without a shell. The program gets the message as JSON on standard input, and its parts in variables.
type Command struct {
	Argv    []string
	timeout time.Duration // 0: commandTimeout
}

func (c *Command) String() string { return "command " + printable.Quote(filepath.Base(c.Argv[0])) }

// Destination implements Sender.
func (c *Command) Destination() string { return fmt.Sprintf("command %q", c.Argv) }

// Send implements Sender.
func (c *Command) Send(ctx context.Context, m Message) error {
	timeout := commandTimeout
	if c.timeout > 0 {
		timeout = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	input, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the message: %w", err)
	}
	stderr := &head{limit: maxStderr}
	program := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	program.Env, program.Stdin, program.Stderr = append(os.Environ(), variables(m)...), bytes.NewReader(input), stderr
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	program.WaitDelay = time.Second // a process that left the group may hold standard error
	switch err := program.Run(); {
	case err == nil: // even if the time has just passed
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("killed after at most %s", timeout)
	case stderr.Len() == 0:
		return err
	default:
		return fmt.Errorf("%w: %s", err, printable.Line(stderr.String()))
	}
}

// variables are the environment variables of a command. Those about one object describe the one that has waited longest.
func variables(m Message) []string {
	first := m.Questions[0]
	return []string{
		"BERTH_NOTIFY_TITLE=" + m.Title, "BERTH_NOTIFY_BODY=" + m.Body, "BERTH_NOTIFY_COUNT=" + strconv.Itoa(len(m.Questions)+m.Omitted),
		"BERTH_NOTIFY_NAMESPACE=" + first.Namespace, "BERTH_NOTIFY_NAME=" + first.Name, "BERTH_NOTIFY_REASON=" + first.Reason,
		"BERTH_NOTIFY_SINCE=" + first.Since.UTC().Format(time.RFC3339),
	}
}

// head keeps the beginning of what is written to it.
type head struct {
	strings.Builder
	limit int
}

// Write implements io.Writer.
func (h *head) Write(text []byte) (int, error) {
	_, _ = h.Builder.Write(text[:min(len(text), h.limit-h.Len())])
	return len(text), nil
}
