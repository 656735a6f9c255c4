// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package clocks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/clocks/vdso"
	"github.com/berth-dev/berth/test/need"
)

// machine is a machine whose clock can be stepped: all processes of Berth on it show the same difference to the clock of the real machine.
type machine struct {
	*testing.T
	*WithT
	// dir contains the programs that start the real programs with a stepped clock, as test/clocks/launch describes, and all other files of the test.
	dir        string
	difference time.Duration

	berth  *exec.Cmd
	ended  chan struct{}
	output *output
	client client.Client
}

// newMachine builds the programs. It skips the test if this machine does not permit stepping the clock of a process.
func newMachine(t *testing.T) *machine {
	t.Helper()
	// The path of a socket is limited in length.
	dir, err := os.MkdirTemp("", "berth-clocks-")
	m := &machine{T: t, WithT: NewWithT(t), dir: dir, output: &output{}}
	m.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { m.Expect(os.RemoveAll(dir)).To(Succeed()) })
	root, err := filepath.Abs(filepath.Join("..", ".."))
	m.Expect(err).NotTo(HaveOccurred())
	m.build(root, m.real(""), "./cmd/berth", "./cmd/berth-shim", "./cmd/berth-lsp")
	m.build(root, m.program("other"), "./test/clocks/launch", "./test/lspfake", "./test/races/workload")
	m.Expect(copyFile(filepath.Join(need.Assets(root), "berth-apiserver"), m.real("berth-apiserver"))).To(Succeed(), "make apiserver builds it")
	for _, name := range []string{"berth", "berth-shim", "berth-lsp", "berth-apiserver", "tracer"} {
		m.Expect(os.Link(filepath.Join(dir, "other", "launch"), filepath.Join(dir, name))).To(Succeed())
	}
	t.Cleanup(m.discard)
	t.Cleanup(m.explain)
	m.writeClock(0)
	text, err := exec.Command(m.program("berth"), "version").CombinedOutput()
	if bytes.Contains(text, []byte(unix.EPERM.Error())) {
		need.Machine(t, errors.New("the clock of single processes cannot be stepped, because this user must not trace programs"))
	}
	m.Expect(err).NotTo(HaveOccurred(), "%s", text)
	return m
}

// build builds programs into a directory.
func (m *machine) build(root, dir string, packages ...string) {
	m.Helper()
	command := exec.Command("go", append([]string{"build", "-trimpath", "-o", dir + "/"}, packages...)...)
	command.Dir, command.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	text, err := command.CombinedOutput()
	m.Expect(err).NotTo(HaveOccurred(), "%s", text)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755) //nolint:gosec // it has to be executable
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

func (m *machine) real(name string) string    { return filepath.Join(m.dir, "real", name) }
func (m *machine) program(name string) string { return filepath.Join(m.dir, name) }
func (m *machine) kubeconfig() string         { return filepath.Join(m.dir, "state", "kubeconfig") }

// home is the environment variable that marks the processes of this test.
func (m *machine) home() string { return "HOME=" + m.dir }

// command returns a command that runs berth with the clock of the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	command := exec.Command(m.program("berth"), args...)
	command.Env = append(os.Environ(), m.home(), "KUBECONFIG="+m.kubeconfig())
	return command
}

// run runs berth with the clock of the machine, and returns its output.
func (m *machine) run(args ...string) string {
	m.Helper()
	text, err := m.command(args...).CombinedOutput()
	m.Expect(err).NotTo(HaveOccurred(), "berth %s: %s", strings.Join(args, " "), text)
	return string(text)
}

// start starts berth up, and returns how long berth up took to print that it is ready.
func (m *machine) start() time.Duration {
	m.Helper()
	began := time.Now()
	before := strings.Count(m.output.String(), "export KUBECONFIG=")
	m.berth = m.command("up", "--hide-objects", "--state-dir", filepath.Join(m.dir, "state"), "--assets", m.dir,
		"--shim", m.program("berth-shim"), "--lsp", m.program("berth-lsp"))
	m.berth.Stdout, m.berth.Stderr = m.output, m.output
	m.berth.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.Expect(m.berth.Start()).To(Succeed())
	m.ended = make(chan struct{})
	go func(command *exec.Cmd, ended chan struct{}) {
		_ = command.Wait()
		close(ended)
	}(m.berth, m.ended)
	m.Eventually(func(g Gomega) {
		g.Expect(m.ended).NotTo(BeClosed(), "berth up exited")
		g.Expect(strings.Count(m.output.String(), "export KUBECONFIG=")).To(BeNumerically(">", before))
	}).WithTimeout(2*time.Minute).Should(Succeed(), m.output.String)
	took := time.Since(began)
	config, err := clientcmd.BuildConfigFromFlags("", m.kubeconfig())
	m.Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Burst, config.WarningHandler = 1000, 2000, rest.NoWarnings{}
	ctrl.SetLogger(logr.Discard())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	m.Expect(err).NotTo(HaveOccurred())
	m.client = client.WithFieldValidation(api, metav1.FieldValidationStrict)
	return took
}

// kill kills berth up; its control plane and its processes keep running.
func (m *machine) kill() {
	m.Helper()
	m.Expect(m.berth.Process.Kill()).To(Succeed())
	m.Eventually(m.ended).WithTimeout(10 * time.Second).Should(BeClosed())
}

// stop ends berth up as Ctrl-C does. It returns an error if something of Berth remains.
func (m *machine) stop() error {
	if err := m.berth.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		return errors.New("berth up did not exit within a minute of SIGINT")
	}
	if left := m.descendants(); len(left) > 0 || !m.berth.ProcessState.Success() {
		return fmt.Errorf("berth up: %s; processes that remain: %v", m.berth.ProcessState, left)
	}
	return nil
}

// discard kills what a failed test has left.
func (m *machine) discard() {
	m.Eventually(func() []int {
		left := m.descendants()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return left
	}).WithTimeout(patience).Should(BeEmpty())
}

// descendants returns the processes that berth up has started directly or indirectly, and berth up.
func (m *machine) descendants() []int {
	return find(func(proc string) bool {
		environment, err := os.ReadFile(filepath.Join(proc, "environ"))
		return err == nil && bytes.Contains(environment, []byte(m.home()+"\x00"))
	})
}

// processes returns the processes of Berth, which all run programs in the directory real.
func (m *machine) processes() []int {
	return find(func(proc string) bool {
		program, err := os.Readlink(filepath.Join(proc, "exe"))
		return err == nil && filepath.Dir(program) == m.real("")
	})
}

// find returns the processes whose directory in /proc fulfills a condition.
func find(condition func(proc string) bool) (pids []int) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range entries {
		if pid, err := strconv.Atoi(filepath.Base(proc)); err == nil && condition(proc) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// explain prints the output of berth up and the objects after a failure.
func (m *machine) explain() {
	if !m.Failed() {
		return
	}
	m.Logf("berth up:\n%s", m.output)
	text, _ := m.command("status", "instances", "devservers", "languageservers", "strategyruns", "strategies", "plans").CombinedOutput()
	m.Logf("%s", text)
}

// step steps the clock of all processes of Berth at the same time: all of them stand still meanwhile. As at a suspend of a machine, the
// monotonic clock of a process does not include the step.
func (m *machine) step(s step) {
	m.Helper()
	m.difference += s.by
	lock, err := os.OpenFile(m.program("clock"), os.O_RDWR, 0)
	m.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = lock.Close() }()
	m.Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
	m.writeClock(m.difference)
	stopped := map[int]bool{}
	m.Eventually(func() (running []int) {
		for _, pid := range m.processes() {
			if !isStopped(pid) {
				running = append(running, pid)
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
			stopped[pid] = true
		}
		return running
	}).WithTimeout(10*time.Second).WithPolling(time.Millisecond).Should(BeEmpty(), "all processes of Berth stop")
	for pid := range stopped {
		if err := vdso.Step(pid, m.difference); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			m.Errorf("step the clock of process %d: %v", pid, err)
		}
	}
	if s.asleep > 0 {
		<-time.After(s.asleep)
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// isStopped reports whether a process is stopped or does not exist.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return strings.ContainsAny(fields[0], "TtZX")
}

// writeClock replaces the content of the file that launch reads, and keeps the file, because launch locks it.
func (m *machine) writeClock(difference time.Duration) {
	m.Helper()
	// A shorter number would leave digits of a longer one behind it.
	text := fmt.Sprintf("%-20d\n", int(difference/time.Second))
	file, err := os.OpenFile(m.program("clock"), os.O_CREATE|os.O_WRONLY, 0o600)
	m.Expect(err).NotTo(HaveOccurred())
	_, err = file.WriteAt([]byte(text), 0)
	m.Expect(errors.Join(err, file.Close())).To(Succeed())
}

// output is the output of a program. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
