// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// program returns the path of a program that `make test-cluster` built.
func program(name string) string {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = filepath.Join(root, "bin")
	}
	return filepath.Join(dir, name)
}

// clusterCommand returns a command whose kubeconfig is that of the test cluster.
func clusterCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, program(name), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+os.Getenv(kubeconfigVariable))
	return command
}

// run runs a program and returns what it prints.
func run(ctx context.Context, name string, args ...string) (string, error) {
	var out, said bytes.Buffer
	command := clusterCommand(ctx, name, args...)
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said.String())
	}
	return out.String(), nil
}

// mustRun runs a program and fails the spec if the program fails.
func mustRun(ctx context.Context, name string, args ...string) string {
	GinkgoHelper()
	out, err := run(ctx, name, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// controlProcess stops, kills or starts a process of the cluster of `make cluster`.
func controlProcess(ctx context.Context, verb, name string) {
	GinkgoHelper()
	mustRun(ctx, "cluster", verb, name)
}

// startAPIServer starts the API server and waits until it answers. The API server exits if etcd does not answer in time on a busy machine; startAPIServer
// then starts it again, as the kubelet would do.
func startAPIServer(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) error {
		if _, err := run(ctx, "cluster", "start", "kube-apiserver"); err != nil {
			return err
		}
		return apiAnswers(ctx)
	}).WithPolling(time.Second).Should(Succeed())
}

// isTestCluster reports whether the cluster is that of `make cluster`, whose processes may be stopped.
func isTestCluster() bool { return os.Getenv("BERTH_CLUSTER") != "" }

// apiAnswers returns an error unless the API server is ready.
func apiAnswers(ctx context.Context) error {
	_, err := clientset.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// firstProcess returns the pid, on this machine, of the first process of a container.
func firstProcess(pod *corev1.Pod, container string) int {
	GinkgoHelper()
	var id string
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ = strings.Cut(status.ContainerID, "://")
		}
	}
	Expect(id).NotTo(BeEmpty(), "the container %s of Pod %s", container, pod.Name)
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if strings.Contains(string(text), id) {
			number, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			Expect(err).NotTo(HaveOccurred())
			return number
		}
	}
	Fail("no process on this machine is in container " + id + " of Pod " + pod.Name)
	return 0
}

// killContainer sends SIGKILL to the process of a container, as the kernel does when memory runs out.
func killContainer(pod *corev1.Pod, container string) {
	GinkgoHelper()
	number := firstProcess(pod, container)
	handle, err := unix.PidfdOpen(number, 0)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = unix.Close(handle) }()
	Expect(firstProcess(pod, container)).To(Equal(number), "the pid still belongs to the container")
	Expect(unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)).To(Succeed())
}

// printClusterState prints the state of the cluster after a failed spec.
func printClusterState(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods,persistentvolumeclaims,services,lease", "--all-namespaces", "--output=wide"},
		{"get", "devservers,instances,languageservers,actions,plans,strategies,strategyruns", "--all-namespaces", "--output=yaml"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"--namespace=" + managerNamespace, "logs", "--selector=app.kubernetes.io/component=manager", "--tail=100", "--prefix"},
		{"--namespace=" + managerNamespace, "logs", "--selector=app.kubernetes.io/component=manager", "--tail=50", "--prefix", "--previous"},
	} {
		out, err := run(ctx, "kubectl", args...)
		if err != nil {
			out = err.Error()
		}
		GinkgoWriter.Printf("== kubectl %s\n%s\n", strings.Join(args, " "), out)
	}
}

var listAll = metav1.ListOptions{}
