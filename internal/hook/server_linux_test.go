// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

const (
	// reportVariable makes this test program send a report to the socket that the variable names, and print the outcome.
	reportVariable = "BERTH_TEST_REPORT"
	// passVariable makes it connect to the socket and pass the connection on through descriptor 3. listenVariable makes it listen, and print what it receives.
	passVariable   = "BERTH_TEST_PASS"
	listenVariable = "BERTH_TEST_LISTEN"
	// occupyVariable makes it open as many connections to the socket as it can.
	occupyVariable = "BERTH_TEST_OCCUPY"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(reportVariable) != "":
		fmt.Println(Send(os.Getenv(reportVariable), Report{State: v1alpha1.AgentWaiting, Question: "permission"}, 30*time.Second))
	case os.Getenv(passVariable) != "":
		err = passConnection(os.Getenv(passVariable))
	case os.Getenv(listenVariable) != "":
		err = listenOnce(os.Getenv(listenVariable))
	case os.Getenv(occupyVariable) != "":
		err = occupy(os.Getenv(occupyVariable))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func passConnection(socket string) error {
	return shim.InDirectory(filepath.Dir(socket), filepath.Base(socket), func(address *net.UnixAddr) error {
		conn, err := net.DialUnix("unix", nil, address)
		if err != nil {
			return err
		}
		file, err := conn.File()
		if err != nil {
			return err
		}
		return syscall.Sendmsg(3, []byte("x"), syscall.UnixRights(int(file.Fd())), nil, 0)
	})
}

func listenOnce(path string) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	fmt.Println("listens")
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(conn)
	fmt.Printf("received %q\n", data)
	return err
}

// machine is a manager that knows programs, and the server that it runs.
type machine struct {
	*GomegaWithT
	t      *testing.T
	server *Server

	mu       sync.Mutex
	programs map[procstat.Process]Object
}

func newMachine(t *testing.T, shared bool) *machine {
	m := &machine{GomegaWithT: NewWithT(t), t: t, programs: map[procstat.Process]Object{}}
	dir := t.TempDir()
	m.Expect(os.Chmod(filepath.Dir(dir), 0o755)).To(Succeed())
	m.server = &Server{Location: Location{Dir: dir, Shared: shared, User: runAs}, Find: m.find, Reports: NewTracker(clock.RealClock{}), Log: logr.Discard()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		m.Expect(<-ended).To(Succeed())
		m.Expect(m.server.Socket()).NotTo(BeAnExistingFile())
	})
	m.Eventually(func() error { return Send(m.server.Socket(), Report{}, time.Minute) }).Should(MatchError(ContainSubstring("refused")))
	return m
}

func (m *machine) find(_ context.Context, boot string, process procstat.Process) (Object, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	object, found := m.programs[process]
	return object, found && boot != ""
}

// program registers a process as the program of an object.
func (m *machine) program(pid int, uid types.UID) {
	process, err := procstat.Identify(pid)
	m.Expect(err).NotTo(HaveOccurred())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.programs[process] = Object{UID: uid, Incarnation: 1}
}

// agent starts a shell that runs a line of its standard input after it was registered as the program of an object, and returns what it prints.
func (m *machine) agent(uid types.UID, user uint32, script string) string {
	command := exec.Command("sh", "-c", "read go; "+script)
	command.Env = append(os.Environ(), reportVariable+"="+m.server.Socket(), "SELF="+m.self())
	if user != 0 {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	input, err := command.StdinPipe()
	m.Expect(err).NotTo(HaveOccurred())
	var out strings.Builder
	command.Stdout, command.Stderr = &out, &out
	m.Expect(command.Start()).To(Succeed())
	if uid != "" {
		m.program(command.Process.Pid, uid)
	}
	_, err = fmt.Fprintln(input)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(command.Wait()).To(Succeed(), out.String())
	return out.String()
}

// self returns a copy of this test program that other users can execute.
func (m *machine) self() string {
	data, err := os.ReadFile(os.Args[0])
	m.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(m.server.Dir, "self")
	if _, err := os.Stat(path); err != nil {
		m.Expect(os.WriteFile(path, data, 0o755)).To(Succeed())
	}
	return path
}

func (m *machine) state(uid types.UID) v1alpha1.AgentState {
	report, _ := m.server.Reports.Take(uid)
	return report.State
}

func TestServer_FindsTheObjectByAncestors(t *testing.T) {
	m := newMachine(t, false)
	m.server.Reports.Take("inner")
	m.server.Reports.Take("outer")
	m.Expect(m.agent("inner", 0, `sh -c '"$SELF"; true'`)).To(Equal("<nil>\n"))
	m.Expect(m.state("inner")).To(Equal(v1alpha1.AgentWaiting))
	m.Expect(m.state("outer")).To(BeEmpty())

	m.program(os.Getpid(), "outer")
	m.Expect(m.agent("", 0, `"$SELF"`)).To(Equal("<nil>\n"))
	m.Expect(m.state("outer")).To(Equal(v1alpha1.AgentWaiting))
}

func TestServer_RefusesForgedReports(t *testing.T) {
	m := newMachine(t, true)
	m.server.Reports.Take("victim")
	victim := exec.Command("sleep", "600")
	m.Expect(victim.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
	})
	m.program(victim.Process.Pid, "victim")
	m.Expect(m.agent("", 0, `BERTH_INCARNATION=1 SESSION_ID=victim "$SELF"`)).To(ContainSubstring("belongs to no Instance"), "a process that is not a descendant")
	m.Expect(m.agent("other", 0, `"$SELF"`)).To(Equal("<nil>\n"), "the process of another object reports only about its own")
	reused, err := procstat.Identify(victim.Process.Pid)
	m.Expect(err).NotTo(HaveOccurred())
	reused.Ticks--
	m.mu.Lock()
	m.programs[reused] = Object{UID: "victim"}
	m.mu.Unlock()
	m.Expect(m.agent("", 0, `"$SELF"`)).To(ContainSubstring("belongs to no Instance"), "an ancestor with another start time")
	m.Expect(m.state("victim")).To(BeEmpty())
}

// nobody and runAs are the UIDs of users without rights. Programs run as runAs.
const (
	nobody = 65534
	runAs  = 65533
)

func TestServer_RefusesReportsOfOtherUsers(t *testing.T) {
	need.Root(t, "run programs as another user")
	m := newMachine(t, true)
	m.server.Reports.Take("victim")
	m.Expect(m.agent("", nobody, `"$SELF"`)).To(ContainSubstring("belongs to no Instance"), "another user")
	m.Expect(m.agent("theirs", nobody, `"$SELF"`)).To(Equal("<nil>\n"), "a program that runs as another user than the manager")
	asNobody := exec.Command(m.self())
	asNobody.Env = append(os.Environ(), reportVariable+"="+m.server.Socket())
	asNobody.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	m.program(os.Getpid(), "victim")
	out, err := asNobody.Output()
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(string(out)).To(ContainSubstring("runs as user 65534, and the program as user 0"), "a descendant that runs as another user")
	m.Expect(m.state("victim")).To(BeEmpty())
}

// A process that has exited may have given its PID to a process of another object.
func TestServer_RefusesAReportOfAProcessThatHasExited(t *testing.T) {
	m := newMachine(t, false)
	m.server.Reports.Take("outer")
	m.program(os.Getpid(), "outer")
	// The child connects, passes its connection to this process, and exits.
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	m.Expect(err).NotTo(HaveOccurred())
	own, theirs := os.NewFile(uintptr(pair[0]), "own"), os.NewFile(uintptr(pair[1]), "theirs")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), passVariable+"="+m.server.Socket())
	child.ExtraFiles = []*os.File{theirs}
	out, err := child.CombinedOutput()
	m.Expect(err).NotTo(HaveOccurred(), string(out))
	_ = theirs.Close()
	data, rights := make([]byte, 1), make([]byte, 64)
	_, length, _, _, err := syscall.Recvmsg(int(own.Fd()), data, rights, 0)
	m.Expect(err).NotTo(HaveOccurred())
	_ = own.Close()
	messages, err := syscall.ParseSocketControlMessage(rights[:length])
	m.Expect(err).NotTo(HaveOccurred())
	passed, err := syscall.ParseUnixRights(&messages[0])
	m.Expect(err).NotTo(HaveOccurred())
	file := os.NewFile(uintptr(passed[0]), "connection")
	conn, err := net.FileConn(file)
	m.Expect(err).NotTo(HaveOccurred())
	_ = file.Close()
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintln(conn, `{"state":"Done"}`)
	m.Expect(err).NotTo(HaveOccurred())
	answer := make([]byte, maxReport)
	n, err := conn.Read(answer)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(string(answer[:n])).To(ContainSubstring("refused"))
	m.Expect(m.state("outer")).To(BeEmpty())
}

func TestServer_BoundsReportsAndConnections(t *testing.T) {
	m := newMachine(t, false)
	m.program(os.Getpid(), "outer")
	var open []net.Conn
	t.Cleanup(func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	send := func(text string) string {
		var answer [maxReport]byte
		n := 0
		err := shim.InDirectory(m.server.Dir, SocketFile, func(address *net.UnixAddr) error {
			conn, err := net.DialUnix("unix", nil, address)
			if err != nil {
				return err
			}
			open = append(open, conn)
			_, _ = conn.Write([]byte(text))
			if strings.Contains(text, "\n") {
				n, _ = conn.Read(answer[:])
			}
			return nil
		})
		m.Expect(err).NotTo(HaveOccurred())
		return string(answer[:n])
	}
	m.Expect(send(`{"state":"Done","x":"` + strings.Repeat("x", 2*maxReport) + "\"}\n")).To(ContainSubstring("read the report"))
	m.Expect(send("no JSON\n")).To(ContainSubstring("not valid JSON"))
	m.Expect(send(`{"state":"Waiting","question":"` + strings.Repeat("x", 99) + "\"}\n")).To(ContainSubstring("invalid kind of question"))
	for range 3 * connections {
		send("") // the client never sends its report
	}
	m.Eventually(func() error { return Send(m.server.Socket(), Report{State: v1alpha1.AgentDone}, time.Minute) }).WithTimeout(time.Minute).Should(Succeed(), "silent clients are disconnected")
}

// Another user of the machine, also with many user IDs, cannot occupy the connections of the agents.
func TestServer_OtherUsersOccupyNoConnectionsOfAgents(t *testing.T) {
	need.Root(t, "connect as other users")
	m := newMachine(t, true)
	m.server.Reports.Take("theirs")
	stranger := exec.Command(m.self())
	stranger.Env = append(os.Environ(), occupyVariable+"="+m.server.Socket())
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := stranger.StdoutPipe()
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(stranger.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	m.Expect(bufio.NewReader(out).ReadString('\n')).To(Equal("occupied\n"))
	m.Expect(m.agent("theirs", runAs, `"$SELF"`)).To(Equal("<nil>\n"))
	m.Expect(m.state("theirs")).To(Equal(v1alpha1.AgentWaiting))
	m.Expect(Send(m.server.Socket(), Report{State: v1alpha1.AgentDone}, time.Minute)).To(MatchError(ContainSubstring("belongs to no Instance")), "root")
}

// occupy keeps more connections open than the server accepts, without an end.
func occupy(socket string) error {
	full, closed := make(chan struct{}), make(chan struct{}, 1)
	time.AfterFunc(time.Minute, func() { os.Exit(1) })
	for i := range 2 * connections {
		go func() {
			for {
				_ = shim.InDirectory(filepath.Dir(socket), filepath.Base(socket), func(address *net.UnixAddr) error {
					conn, err := net.DialUnix("unix", nil, address)
					if err != nil {
						return err
					}
					_, err = conn.Read(make([]byte, 1)) // until the server closes it
					select {
					case closed <- struct{}{}:
					default:
					}
					time.Sleep(10 * time.Millisecond) // leave processor time to the server
					return err
				})
			}
		}()
		if i == connections {
			go func() { <-closed; close(full) }()
		}
	}
	<-full
	fmt.Println("occupied")
	select {}
}

func TestSend_RefusesTheSocketOfAnotherUser(t *testing.T) {
	need.Root(t, "run a listener as another user")
	m := newMachine(t, true)
	dir := t.TempDir()
	m.Expect(os.Chmod(filepath.Dir(dir), 0o755)).To(Succeed())
	m.Expect(os.Chmod(dir, 0o777)).To(Succeed())
	impostor := exec.Command(m.self())
	impostor.Env = append(os.Environ(), listenVariable+"="+filepath.Join(dir, "s"))
	impostor.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := impostor.StdoutPipe()
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(impostor.Start()).To(Succeed())
	line := make([]byte, 64)
	_, err = out.Read(line)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(Send(filepath.Join(dir, "s"), Report{State: v1alpha1.AgentDone}, time.Minute)).To(MatchError(ContainSubstring("belongs to user 65534")))
	n, err := out.Read(line)
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(string(line[:n])).To(Equal("received \"\"\n"))
	m.Expect(impostor.Wait()).To(Succeed())
}
