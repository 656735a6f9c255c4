// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const namespace = "default"

var inNamespace = client.InNamespace(namespace)

// suiteMark is the environment variable that marks every process that berth started, because all these processes inherit it.
const suiteMark = "E2E_SUITE"

// berth is a `berth up` with a separate state directory, and the commands that use it.
type berth struct {
	root, assets, state string
	mark                string
	cgroupsBefore       map[string]bool

	output *output
	cmd    *exec.Cmd
	ended  chan struct{}
	err    error
	// inherited is the path of a file that berth inherits from its caller.
	inherited string

	client client.WithWatch
}

func newBerth(root, assets, state string) *berth {
	return &berth{
		root: root, assets: assets, state: state,
		mark:          fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()),
		cgroupsBefore: cgroups(),
		output:        &output{},
	}
}

func (b *berth) program() string    { return filepath.Join(b.root, "bin", "berth") }
func (b *berth) kubeconfig() string { return filepath.Join(b.state, "kubeconfig") }

// environment returns the environment of the tests with Berth's programs in PATH, with the mark, and without the variable CI. The shell of a user does not
// set CI, and programs such as Gemini CLI do not show their user interface if CI is set, even on a terminal.
func (b *berth) environment() []string {
	own := slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "CI=") })
	return append(own,
		"PATH="+filepath.Join(b.root, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"KUBEBUILDER_ASSETS="+b.assets,
		"KUBECONFIG="+b.kubeconfig(),
		"NEXT_TELEMETRY_DISABLED=1",
		suiteMark+"="+b.mark,
	)
}

// kubeconfigLine is the start of the line that berth up prints for users to paste into their shell.
const kubeconfigLine = "export KUBECONFIG="

// up starts `berth up` and waits until it has printed the line with kubeconfigLine and its API server serves the kinds of Berth.
func (b *berth) up(ctx context.Context, args ...string) {
	GinkgoHelper()
	Expect(b.running()).To(BeFalse(), "berth is already running")
	before := strings.Count(b.output.String(), kubeconfigLine)
	b.cmd = exec.Command(b.program(), append([]string{"up", "--state-dir", b.state}, args...)...)
	b.cmd.Env = b.environment()
	b.cmd.Stdout, b.cmd.Stderr = b.output, b.output
	// A separate process group, so that Ctrl-C in the terminal of the tests does not reach berth.
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	inherited, err := os.CreateTemp(b.state, "inherited-")
	Expect(err).NotTo(HaveOccurred())
	b.cmd.ExtraFiles, b.inherited = []*os.File{inherited}, inherited.Name()
	Expect(b.cmd.Start()).To(Succeed())
	Expect(inherited.Close()).To(Succeed())
	b.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		b.err = cmd.Wait()
		close(ended)
	}(b.cmd, b.ended)

	Eventually(func(g Gomega) {
		g.Expect(b.running()).To(BeTrue(), "berth up exited: %v\n%s", b.err, b.output)
		g.Expect(strings.Count(b.output.String(), kubeconfigLine)).To(BeNumerically(">", before))
		g.Expect(b.connect()).To(Succeed())
		var servers v1alpha1.DevServerList
		g.Expect(b.client.List(ctx, &servers)).To(Succeed())
	}).WithTimeout(startTimeout).Should(Succeed(), "%s", b.output)
}

func (b *berth) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 200
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return err
	}
	b.client, err = client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	return err
}

func (b *berth) running() bool {
	if b.ended == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// interrupt sends SIGINT, as Ctrl-C does, and waits for the exit.
func (b *berth) interrupt(ctx context.Context) {
	GinkgoHelper()
	Expect(b.cmd.Process.Signal(os.Interrupt)).To(Succeed())
	Eventually(ctx, b.ended).WithTimeout(startTimeout).Should(BeClosed(), "berth up did not exit after Ctrl-C\n%s", b.output)
	Expect(b.err).NotTo(HaveOccurred(), "berth up failed while shutting down\n%s", b.output)
}

// kill sends SIGKILL.
func (b *berth) kill(ctx context.Context) {
	GinkgoHelper()
	Expect(b.cmd.Process.Kill()).To(Succeed())
	Eventually(ctx, b.ended).Should(BeClosed())
}

// run runs a berth command, which must succeed, and returns its output.
func (b *berth) run(ctx context.Context, args ...string) string {
	GinkgoHelper()
	return b.execute(ctx, b.program(), args...)
}

// kubectl runs kubectl against the API server of this `berth up`.
func (b *berth) kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	return b.execute(ctx, filepath.Join(b.assets, "kubectl"), args...)
}

// result runs berth and returns its output and its exit code.
func (b *berth) result(ctx context.Context, args ...string) (output string, code int) {
	GinkgoHelper()
	return b.resultOf(ctx, b.program(), args...)
}

// resultOf runs a program and returns its output and its exit code.
func (b *berth) resultOf(ctx context.Context, program string, args ...string) (output string, code int) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = b.environment()
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		Expect(err).NotTo(HaveOccurred())
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func (b *berth) execute(ctx context.Context, program string, args ...string) string {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = b.environment()
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s:\n%s", filepath.Base(program), strings.Join(args, " "), text)
	return string(text)
}

// sockets returns the remaining sockets in the state directory.
func (b *berth) sockets() ([]string, error) {
	var found []string
	err := filepath.WalkDir(b.state, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type()&fs.ModeSocket != 0 {
			found = append(found, path)
		}
		return nil
	})
	return found, err
}

// explain prints logs and objects after a failure.
func (b *berth) explain() {
	fmt.Fprintf(GinkgoWriter, "\n--- berth up:\n%s\n", b.output)
	if !b.running() {
		return
	}
	kubectl := filepath.Join(b.assets, "kubectl")
	fmt.Fprintf(GinkgoWriter, "\n--- objects:\n%s\n", b.attempt(kubectl, "get", "berth", "-A", "-o", "yaml"))
	for _, name := range strings.Fields(b.attempt(kubectl, "get", "berth", "-n", namespace, "-o", "name")) {
		path := strings.Replace(name, ".berth.dev", "", 1)
		fmt.Fprintf(GinkgoWriter, "\n--- log of %s:\n%s\n", path, b.attempt(b.program(), "logs", "--tail", "100", path))
	}
}

// attempt runs a command and returns its output, even if the command fails.
func (b *berth) attempt(program string, args ...string) string {
	cmd := exec.Command(program, args...)
	cmd.Env = b.environment()
	text, _ := cmd.CombinedOutput()
	return string(text)
}

// output keeps the last bytes that a program writes. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

var _ io.Writer = &output{}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len() > 1<<20 {
		o.text.Next(o.text.Len() / 2)
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
