// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// mistake is a common mistake, with the explanation that berth status prints, and the correction. Each mistake is a row of docs/troubleshooting.md.
type mistake struct {
	name string
	// output lists parts of the expected output of `berth status KIND/NAME`. {dir}, {port} and {name} are replaced with the values of the case.
	output []string
	// fix is the correction, in words.
	fix string
	// make returns the object with the mistake; correct carries out the correction.
	make    func(c *mistakeCase) *testObject
	correct func(ctx context.Context, c *mistakeCase)
}

// mistakeCase is one case: a mistake with its project, port and objects.
type mistakeCase struct {
	*testObject
	dir, port, name string
	end             func() // removes the obstacle, such as a program that has the port
}

// write writes a file of the project.
func (c *mistakeCase) write(name, text string) {
	GinkgoHelper()
	path := filepath.Join(c.dir, name)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
}

func (c *mistakeCase) server(command ...string) *testObject {
	return devServer("mistake", c.dir, command...)
}

// setCommand returns the correction that sets another command.
func setCommand(words ...string) func(context.Context, *mistakeCase) {
	return editSpec(func(c *mistakeCase) { c.GetProcessSpec().Process.Command = words })
}

func editSpec(change func(*mistakeCase)) func(context.Context, *mistakeCase) {
	return func(ctx context.Context, c *mistakeCase) {
		GinkgoHelper()
		Expect(c.read(ctx)).To(Succeed())
		c.patch(ctx, func() { change(c) })
	}
}

// rewriteFile returns the correction that rewrites a file of the project and restarts the process.
func rewriteFile(name, text string) func(context.Context, *mistakeCase) {
	return func(ctx context.Context, c *mistakeCase) {
		GinkgoHelper()
		c.write(name, text)
		suiteBerth.run(ctx, "restart", c.path())
	}
}

const (
	nodeServer   = `require("http").createServer((q, r) => r.end("hello")).listen(process.env.PORT)` + "\n"
	pythonServer = `
import http.server, os
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), http.server.SimpleHTTPRequestHandler).serve_forever()
`
	nginxConfig = `
pid nginx.pid;
events {}
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
	server { listen 127.0.0.1:%s; root .; autoindex on; }
}
`
	packageJSON = `{"name": "web", "version": "1.0.0", "scripts": {"start": "node server.js"}}`
	goMain      = "package main\n\nimport \"time\"\n\nfunc main() {\n\ttime.Sleep(time.Hour)\n}\n"
)

// mistakes are the rows of the table, except for the suspended manager, which has its own spec.
var mistakes = []mistake{
	{
		name: "The command does not exist", output: []string{"CommandNotFound", `"no-such-program" is in none of the directories of PATH`, "spec.process.command"},
		fix:  "Install the program, or correct `spec.process.command`.",
		make: func(c *mistakeCase) *testObject { return c.server("no-such-program") }, correct: setCommand("gohello"),
	},
	{
		name: "The whole command line is one string", output: []string{"CommandNotFound", `write each word as an item of spec.process.command: ["npm", "run", "start"]`},
		fix: "Write each word as an item of `spec.process.command`.",
		make: func(c *mistakeCase) *testObject {
			c.write("package.json", packageJSON)
			c.write("server.js", nodeServer)
			return c.server("npm run start")
		},
		correct: setCommand("npm", "run", "start"),
	},
	{
		name: "The npm script does not exist", output: []string{"exit code 1", "berth logs devserver/{name}", `Missing script: "dev"`},
		fix: "Use a script of `package.json` in `spec.process.command`, or add the script.",
		make: func(c *mistakeCase) *testObject {
			c.write("package.json", packageJSON)
			c.write("server.js", nodeServer)
			return c.server("npm", "run", "dev")
		},
		correct: setCommand("npm", "run", "start"),
	},
	{
		name: "There is no package.json", output: []string{"exit code", "ENOENT", "{dir}/package.json"},
		fix: "Correct `spec.process.workingDir`, or create the project there.",
		make: func(c *mistakeCase) *testObject {
			c.write("web/package.json", packageJSON)
			c.write("web/server.js", nodeServer)
			return c.server("npm", "start")
		},
		correct: editSpec(func(c *mistakeCase) { c.GetProcessSpec().Process.WorkingDir = filepath.Join(c.dir, "web") }),
	},
	{
		name: "A Node.js module is missing", output: []string{"exit code 1", "Cannot find module 'no-such-module'"},
		fix: "Install it (`npm install`), then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			c.write("server.js", `require("no-such-module")`+"\n"+nodeServer)
			return c.server("node", "server.js")
		},
		correct: rewriteFile("node_modules/no-such-module/index.js", ""),
	},
	{
		name: "A Python module is missing", output: []string{"exit code 1", "ModuleNotFoundError: No module named 'no_such_module'"},
		fix: "Install it (`pip install`), then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			c.write("app.py", "import no_such_module\n"+pythonServer)
			return c.server("python3", "app.py")
		},
		correct: rewriteFile("no_such_module.py", ""),
	},
	{
		name: "A syntax error in JavaScript", output: []string{"exit code 1", "{dir}/server.js:1", "SyntaxError: Unexpected end of input"},
		fix: "Correct the file, then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			c.write("server.js", `require("http").createServer((q, r) => {`)
			return c.server("node", "server.js")
		},
		correct: rewriteFile("server.js", nodeServer),
	},
	{
		name: "A syntax error in Python", output: []string{"exit code 1", `File "{dir}/app.py", line 1`, "SyntaxError"},
		fix: "Correct the file, then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			c.write("app.py", "def serve(:\n")
			return c.server("python3", filepath.Join(c.dir, "app.py"))
		},
		correct: rewriteFile("app.py", pythonServer),
	},
	{
		name: "Go code that does not compile", output: []string{"exit code 1", "./main.go:6:2: undefined: serve"},
		fix: "Correct the file, then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			c.write("go.mod", "module web\n\ngo 1.24\n")
			c.write("main.go", strings.Replace(goMain, "time.Sleep(time.Hour)", "serve(time.Hour)", 1))
			s := instance("mistake", "go", "run", ".")
			s.GetProcessSpec().Process.WorkingDir = c.dir
			return s
		},
		correct: rewriteFile("main.go", goMain),
	},
	{
		name: "The working directory does not exist", output: []string{"WorkingDirMissing", "{dir}/web does not exist", "create it or correct spec.process.workingDir"},
		fix:  "Create the directory, and Berth starts the process; or correct `spec.process.workingDir`.",
		make: func(c *mistakeCase) *testObject { return devServer("mistake", filepath.Join(c.dir, "web"), "gohello") },
		correct: func(_ context.Context, c *mistakeCase) {
			Expect(os.Mkdir(filepath.Join(c.dir, "web"), 0o755)).To(Succeed())
		},
	},
	{
		name: "The working directory is a file", output: []string{"WorkingDirMissing", "{dir}/main.go does not exist or is not a directory", "spec.process.workingDir"},
		fix: "Correct `spec.process.workingDir`.",
		make: func(c *mistakeCase) *testObject {
			c.write("main.go", goMain)
			return devServer("mistake", filepath.Join(c.dir, "main.go"), "gohello")
		},
		correct: editSpec(func(c *mistakeCase) { c.GetProcessSpec().Process.WorkingDir = c.dir }),
	},
	{
		name: "The script is not executable", output: []string{"PermissionDenied", "may not execute the program {dir}/serve", "chmod +x"},
		fix: "`chmod +x` the file, and Berth starts the process.",
		make: func(c *mistakeCase) *testObject {
			c.write("serve", "#!/usr/bin/env bash\nexec gohello\n")
			return c.server("./serve")
		},
		correct: func(_ context.Context, c *mistakeCase) {
			Expect(os.Chmod(filepath.Join(c.dir, "serve"), 0o755)).To(Succeed())
		},
	},
	{
		name: "The interpreter of the script is missing", output: []string{"CommandNotFound", "{dir}/serve exists, but the interpreter that its first line"},
		fix: "Correct the first line of the script, or install the interpreter.",
		make: func(c *mistakeCase) *testObject {
			c.write("serve", "#!/no/such/bash\nexec gohello\n")
			Expect(os.Chmod(filepath.Join(c.dir, "serve"), 0o755)).To(Succeed())
			return c.server("./serve")
		},
		correct: func(_ context.Context, c *mistakeCase) { c.write("serve", "#!/usr/bin/env bash\nexec gohello\n") },
	},
	{
		name: "Another program uses the port", output: []string{"PortInUse", "ort {port} is used by pid " + strconv.Itoa(os.Getpid()), "Stop that process or set another spec.port"},
		fix: "Stop that program, or set another `spec.port`.",
		make: func(c *mistakeCase) *testObject {
			listener := listenOnFreePort()
			c.end = func() { _ = listener.Close() }
			DeferCleanup(c.end)
			_, c.port, _ = net.SplitHostPort(listener.Addr().String())
			return withPort(c.server("gohello"), c.port)
		},
		correct: func(_ context.Context, c *mistakeCase) { c.end() },
	},
	{
		name: "Another DevServer has the port", output: []string{"PortClaimed", "ort {port} belongs to DevServer default/", "or set another spec.port"},
		fix: "Stop that DevServer, or set another `spec.port`.",
		make: func(c *mistakeCase) *testObject {
			c.port = freePort()
			withPort(devServer("holder", "", "gohello"), c.port).create(context.Background()).waitUntilReady(context.Background())
			return withPort(c.server("gohello"), c.port)
		},
		correct: editSpec(func(c *mistakeCase) { c.testObject.server().Spec.Port = ptr.To(parsePort(freePort())) }),
	},
	{
		name: "The port needs root", output: []string{"exit code 1", "listen EACCES: permission denied", ":{port}"},
		fix: "Set `spec.port` to a port from 1024 to 65535.",
		make: func(c *mistakeCase) *testObject {
			c.port = "879"
			c.write("server.js", nodeServer)
			words := []string{"node", "server.js"}
			if os.Geteuid() == 0 { // root may listen on every port, so the program drops that capability
				words = append([]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"}, words...)
			}
			return withPort(c.server(words...), c.port)
		},
		correct: editSpec(func(c *mistakeCase) { c.testObject.server().Spec.Port = ptr.To(parsePort(freePort())) }),
	},
	{
		name: "A Secret is missing", output: []string{"InvalidEnvironment", "Secret {name} does not exist in namespace default; create it"},
		fix: "Create the Secret, and Berth starts the process.",
		make: func(c *mistakeCase) *testObject {
			s := c.server("gohello")
			s.GetProcessSpec().Process.Env = append(s.GetProcessSpec().Process.Env, v1alpha1.EnvVar{
				Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: s.GetName(), Key: "token"}},
			})
			return s
		},
		correct: func(ctx context.Context, c *mistakeCase) {
			suiteBerth.kubectl(ctx, "create", "secret", "generic", c.name, "--from-literal=token=x")
			DeferCleanup(func(ctx context.Context) { suiteBerth.kubectl(ctx, "delete", "secret", c.name) })
		},
	},
	{
		name: "A ConfigMap lacks a key", output: []string{"InvalidEnvironment", "ConfigMap {name} has no key level; add it"},
		fix: "Add the key, and Berth starts the process.",
		make: func(c *mistakeCase) *testObject {
			s := c.server("gohello")
			s.GetProcessSpec().Process.Env = append(s.GetProcessSpec().Process.Env, v1alpha1.EnvVar{
				Name: "LEVEL", ValueFrom: &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeyRef{Name: s.GetName(), Key: "level"}},
			})
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.GetName(), Namespace: namespace}}
			Expect(suiteBerth.client.Create(context.Background(), config)).To(Succeed())
			DeferCleanup(func(ctx context.Context) { Expect(suiteBerth.client.Delete(ctx, config)).To(Succeed()) })
			return s
		},
		correct: func(ctx context.Context, c *mistakeCase) {
			suiteBerth.kubectl(ctx, "patch", "configmap", c.name, "--type=merge", `--patch={"data":{"level":"debug"}}`)
		},
	},
	{
		name: "The disk is full", output: []string{"exit code 1", "No space left on device"},
		fix: "Free some space on the file system that the program writes to, then `berth restart`.",
		make: func(c *mistakeCase) *testObject {
			// Writes to /dev/full fail as on a full disk, and need no root permissions.
			Expect(os.Symlink("/dev/full", filepath.Join(c.dir, "cache"))).To(Succeed())
			return c.server("bash", "-c", "echo data > cache && exec gohello")
		},
		correct: func(ctx context.Context, c *mistakeCase) {
			Expect(os.Remove(filepath.Join(c.dir, "cache"))).To(Succeed())
			suiteBerth.run(ctx, "restart", c.path())
		},
	},
	{
		name: "The server is a daemon", output: []string{"the program left processes running in the background (nginx", "run the program in the foreground", `nginx -g 'daemon off;'`},
		fix: "Add the option that keeps the program in the foreground to `spec.process.command`.",
		make: func(c *mistakeCase) *testObject {
			c.port = freePort()
			c.write("nginx.conf", fmt.Sprintf(nginxConfig, c.port))
			return withPort(c.server("/usr/sbin/nginx", "-p", c.dir, "-c", "nginx.conf", "-e", "stderr"), c.port)
		},
		correct: editSpec(func(c *mistakeCase) {
			process := &c.GetProcessSpec().Process
			process.Command = append(process.Command, "-g", "daemon off;")
		}),
	},
	{
		name: "The program is not a server", output: []string{"NotReady", "The server does not listen on a TCP port yet; its assigned port is"},
		fix:  "Use a command that serves on `$PORT`, or the kind Instance.",
		make: func(c *mistakeCase) *testObject { return c.server("sleep", "1000") }, correct: setCommand("gohello"),
	},
	{
		name: "The Instance of the DevServer does not exist", output: []string{"InstanceMissing", "Instance {name} does not exist in namespace default; create it"},
		fix: "Create the Instance, and Berth starts the process.",
		make: func(c *mistakeCase) *testObject {
			s := c.server("gohello")
			s.server().Spec.InstanceRef = &v1alpha1.LocalReference{Name: s.GetName()}
			return s
		},
		correct: func(ctx context.Context, c *mistakeCase) {
			owner := instance("owner", "sleep", "1000")
			owner.SetName(c.name)
			owner.create(ctx)
		},
	},
}

func withPort(s *testObject, port string) *testObject {
	s.server().Spec.Port = ptr.To(parsePort(port))
	return s
}

func parsePort(port string) int32 {
	n, err := strconv.ParseInt(port, 10, 32)
	Expect(err).NotTo(HaveOccurred())
	return int32(n)
}

// expectedOutput returns the expected texts with the values of the case.
func (c *mistakeCase) expectedOutput(words []string) []string {
	filled := make([]string, len(words))
	for i, word := range words {
		filled[i] = strings.NewReplacer("{dir}", c.dir, "{port}", c.port, "{name}", c.name).Replace(word)
	}
	return filled
}

// suspendedManager is the only mistake that concerns the manager rather than an object.
var suspendedManager = mistake{
	name: "The manager is suspended or has exited", output: []string{"warning: the manager of host", "has been silent for", "continue it or start it again"},
	fix: "Continue or start `berth up` or `berth manager`.",
}

// row returns the row for a mistake in docs/troubleshooting.md, with placeholders for the values that differ from case to case.
func (m mistake) row() string {
	says := strings.ReplaceAll(strings.Join(m.output, "` … `"), "ort {port}", "port {port}")
	says = strings.ReplaceAll(says, "pid "+strconv.Itoa(os.Getpid()), "pid {pid}")
	return fmt.Sprintf("| %s | `%s` | %s |", m.name, says, m.fix)
}

var _ = Describe("A beginner's mistake", func() {
	It("has a row in the documentation", func() {
		text, err := os.ReadFile(filepath.Join(suiteBerth.root, "docs", "troubleshooting.md"))
		Expect(err).NotTo(HaveOccurred())
		all := append(mistakes[:len(mistakes):len(mistakes)], suspendedManager)
		Expect(len(all)).To(BeNumerically(">=", 20))
		for _, m := range all {
			Expect(string(text)).To(ContainSubstring(m.row()+"\n"), "copy this row into the table")
		}
	})

	It("is explained by berth status, whose text is enough to correct it", Label(anyUser), NodeTimeout(5*time.Minute), func(ctx context.Context) {
		begun := time.Now()
		made := make([]*mistakeCase, len(mistakes))
		By("creating all mistakes")
		for i, m := range mistakes {
			c := &mistakeCase{dir: GinkgoT().TempDir()}
			c.testObject = m.make(c)
			c.name = c.GetName()
			c.create(ctx)
			made[i] = c
		}
		By("reading the explanation of berth status")
		for i, m := range mistakes {
			c := made[i]
			Eventually(ctx, func(g Gomega) {
				printed := suiteBerth.run(ctx, "status", c.path())
				for _, word := range c.expectedOutput(m.output) {
					g.Expect(printed).To(ContainSubstring(word), m.name)
				}
				g.Expect(printed).NotTo(MatchRegexp(`[a-z)] (Correct|Berth checks)`), "two sentences without a full stop")
			}).Should(Succeed())
		}
		By("correcting all mistakes")
		for i, m := range mistakes {
			m.correct(ctx, made[i])
		}
		for i, m := range mistakes {
			By(m.name)
			made[i].waitUntilReady(ctx)
		}
		AddReportEntry("seconds for all mistakes", time.Since(begun).Seconds())
	})

	It("is reported for a suspended manager", NodeTimeout(startTimeout), func(ctx context.Context) {
		s := devServer("silent", "", "gohello").create(ctx).waitUntilReady(ctx)
		Expect(suiteBerth.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
		proceed := func() { Expect(suiteBerth.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed()) }
		DeferCleanup(proceed)
		By("setting the last renewal of the lease back by one minute")
		var leases coordinationv1.LeaseList
		Expect(suiteBerth.client.List(ctx, &leases, client.InNamespace("berth-system"), client.HasLabels{v1alpha1.LabelHost})).To(Succeed())
		Expect(leases.Items).To(HaveLen(1))
		leases.Items[0].Spec.RenewTime.Time = leases.Items[0].Spec.RenewTime.Add(-time.Minute)
		Expect(suiteBerth.client.Update(ctx, &leases.Items[0])).To(Succeed())

		for _, args := range [][]string{{"status"}, {"status", s.path()}, {"restart", s.path()}} {
			printed := suiteBerth.run(ctx, args...)
			for _, word := range suspendedManager.output {
				Expect(printed).To(ContainSubstring(word), "%v", args)
			}
		}
		begun := time.Now()
		Expect(suiteBerth.attempt(suiteBerth.program(), "logs", "-f", s.path())).To(ContainSubstring("does not respond: is it suspended"))
		Expect(time.Since(begun)).To(BeNumerically("<", 20*time.Second))
		proceed()
		s.waitForIncarnation(ctx, 2)
	})
})
