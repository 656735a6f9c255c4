// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const object = "apiVersion: berth.dev/v1alpha1\nkind: DevServer\nmetadata: {name: %}\nspec: {process: {command: [x]}}\n"

func manifestNamed(name string) string { return strings.ReplaceAll(object, "%", name) }

func TestReadManifests_OrdersAndValidates(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
		says  string
	}{
		"several objects": {
			files: map[string]string{"a.yaml": "# words\n---\n" + manifestNamed("one") + "---\n" + manifestNamed("two"), "b.yml": manifestNamed("three"), "c.txt": "no: [yaml"},
			want:  []string{"one", "two", "three"},
		},
		"namespaces first": {
			files: map[string]string{"a.yaml": manifestNamed("one"), "b.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: room}\n"},
			want:  []string{"room", "one"},
		},
		"a list": {
			files: map[string]string{"a.json": `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}]}`},
			want:  []string{"c"},
		},
		"invalid YAML":  {files: map[string]string{"a.yaml": "a: [b"}, says: "a.yaml, object 1"},
		"no name":       {files: map[string]string{"a.yaml": manifestNamed("one") + "---\nkind: DevServer\n"}, says: "a.yaml, object 2: apiVersion, kind and metadata.name are required"},
		"a field twice": {files: map[string]string{"a.yaml": manifestNamed("one") + "kind: DevServer\n"}, says: "already set"},
		"no manifests":  {files: map[string]string{"a.txt": ""}, says: "contains no .yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			for file, text := range test.files {
				g.Expect(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)).To(Succeed())
			}
			found, err := readManifests(dir)
			if test.says != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			var names []string
			for _, m := range found {
				names = append(names, m.object.GetName())
			}
			g.Expect(names).To(Equal(test.want))
		})
	}
}

// A directory with manifests may come from another person.
func TestReadManifests_ReadsOnlyRegularFilesOfADirectory(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a pipe":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"a large file": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(put(filepath.Join(dir, "a.yaml"))).To(Succeed())
			done := make(chan error, 1)
			go func() {
				_, err := readManifests(dir)
				done <- err
			}()
			g.Eventually(done).WithTimeout(timeout).Should(Receive(MatchError(Or(ContainSubstring("is not a regular file"), ContainSubstring("more than 16777216 bytes")))))
		})
	}
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "data"), []byte(manifestNamed("one")), 0o600)).To(Succeed())
	g.Expect(os.Symlink("data", filepath.Join(dir, "a.yaml"))).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(dir, "b.yaml"), 0o700)).To(Succeed())
	g.Expect(readManifests(dir)).To(HaveLen(1), "a mounted ConfigMap consists of links")
}

func TestWriteKubeconfig_KeepsOtherEntries(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "kube", "config")
	write := func(name, server string) []byte {
		config := clientcmdapi.NewConfig()
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "t"}
		config.CurrentContext = name
		data, err := clientcmd.Write(*config)
		g.Expect(err).NotTo(HaveOccurred())
		return data
	}
	g.Expect(writeKubeconfig(path, write("work", "https://work"))).To(Succeed())
	g.Expect(writeKubeconfig(path, write("berth", "https://old"))).To(Succeed())
	g.Expect(writeKubeconfig(path, write("berth", "https://new"))).To(Succeed())
	got, err := clientcmd.LoadFromFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Clusters["work"].Server).To(Equal("https://work"))
	g.Expect(got.Clusters["berth"].Server).To(Equal("https://new"))
	g.Expect(got.CurrentContext).To(Equal("berth"))
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
}

func TestLoadConfig_FallsBackToKubeconfigOfUp(t *testing.T) {
	g := NewWithT(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	t.Setenv("KUBECONFIG", filepath.Join(home, "none"))
	_, _, err := loadConfig(&connectionFlags{})
	g.Expect(err).To(MatchError(And(ContainSubstring("berth up"), ContainSubstring("--kubeconfig"))))

	write := func(path, server string) {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: server}
		config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", Namespace: "room"}
		config.CurrentContext = "c"
		g.Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	}
	write(filepath.Join(home, "state", "berth", "kubeconfig"), "https://up")
	config, namespace, err := loadConfig(&connectionFlags{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Host).To(Equal("https://up"), "the one of berth up if there is no other")
	g.Expect(namespace).To(Equal("room"))

	write(filepath.Join(home, "none"), "https://env")
	config, namespace, err = loadConfig(&connectionFlags{namespace: "mine"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Host).To(Equal("https://env"))
	g.Expect(namespace).To(Equal("mine"))
}

func TestOpenLog_KeepsTheLogOfThePreviousManager(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "manager.log")
	for _, line := range []string{"first\n", "second\n"} {
		log, err := openLog(path)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = log.WriteString(line)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(log.Close()).To(Succeed())
	}
	g.Expect(os.ReadFile(path)).To(Equal([]byte("first\nsecond\n")))
}
