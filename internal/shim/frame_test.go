// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestReadFrame_RejectsInvalidFrames(t *testing.T) {
	g := NewWithT(t)
	var buf bytes.Buffer
	g.Expect(writeFrame(&buf, callFrame{Version: 3, Verb: verbAttach, Columns: 80})).To(Succeed())
	cut := bytes.NewReader(buf.Bytes()[:buf.Len()-1])
	var call callFrame
	g.Expect(readFrame(&buf, &call)).To(Succeed())
	g.Expect(call).To(Equal(callFrame{Version: 3, Verb: verbAttach, Columns: 80}))
	g.Expect(readFrame(cut, &call)).NotTo(Succeed(), "a truncated frame")
	g.Expect(readFrame(strings.NewReader("\xff\xff\xff\xff"), &call)).To(MatchError(ContainSubstring("longer")), "a peer cannot cause an allocation of 4 GiB")
	g.Expect(readFrame(strings.NewReader("\x00\x00\x00\x01{"), &call)).NotTo(Succeed(), "invalid JSON")
}

func TestReadInput_ReadsDataAndResizes(t *testing.T) {
	g := NewWithT(t)
	var buf bytes.Buffer
	g.Expect(writeInput(&buf, inputData, []byte("hello"))).To(Succeed())
	g.Expect(writeInput(&buf, inputResize, sizePayload(80, 24))).To(Succeed())
	kind, payload, err := readInput(&buf, make([]byte, 2))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kind).To(BeEquivalentTo(inputData))
	g.Expect(string(payload)).To(Equal("hello"))
	kind, payload, err = readInput(&buf, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kind).To(BeEquivalentTo(inputResize))
	g.Expect(payload).To(Equal([]byte{0, 80, 0, 24}))
	_, _, err = readInput(strings.NewReader("\x00\xff\xff\xff\xff"), nil)
	g.Expect(err).To(MatchError(ContainSubstring("longer")))
}

func TestEnvironment_FiltersInheritedVariables(t *testing.T) {
	g := NewWithT(t)
	launch := Launch{Record: Record{Token: "token", Terminal: true},
		Inherited: []string{"PATH=/bin", "BERTH_SECRET=x", "KUBECONFIG=/k", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES=kept", "TMUX=/s,1,0", "TERM=dumb"}, Env: []string{"A=1", "A=2=3", "PATH=/usr/bin"}}
	env, failed := launch.environment()
	g.Expect(failed).NotTo(HaveOccurred())
	g.Expect(env).To(ConsistOf("PATH=/usr/bin", "KUBERNETES=kept", "TERM=xterm-256color", "A=2=3", MarkVariable+"="+Mark("token")))
	g.Expect(Mark("token")).NotTo(ContainSubstring("token"))

	for _, bad := range []string{"LD_PRELOAD=x", "LD_AUDIT=x", "LD_LIBRARY_PATH=x", "DYLD_INSERT_LIBRARIES=x", "no equals sign", "=x"} {
		launch.Env = []string{bad}
		_, failed := launch.environment()
		g.Expect(failed).To(HaveOccurred(), bad)
		g.Expect(failed.Reason).To(Equal(ReasonStartFailed))
	}
}

func TestProgram_IsSearchedInPath(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o700, "plain": 0o600} {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode)).To(Succeed())
	}
	g.Expect(os.Mkdir(filepath.Join(dir, "folder"), 0o700)).To(Succeed())
	env := []string{"PATH=/no/such/directory::" + dir}
	launch := &Launch{}
	file, failed := launch.program("good", env, "/")
	g.Expect(failed).NotTo(HaveOccurred())
	g.Expect(file).To(Equal(filepath.Join(dir, "good")))
	file, failed = launch.program("./good", nil, dir)
	g.Expect(failed).NotTo(HaveOccurred())
	g.Expect(file).To(Equal(filepath.Join(dir, "good")), "relative to the working directory of the child")
	file, failed = launch.program("good", []string{"PATH=."}, dir)
	g.Expect(failed).NotTo(HaveOccurred())
	g.Expect(file).To(Equal(filepath.Join(dir, "good")))
	for command, reason := range map[string]string{
		"plain": ReasonPermissionDenied, "folder": ReasonCommandNotFound, "none": ReasonCommandNotFound, "": ReasonCommandNotFound,
		"./folder": ReasonPermissionDenied, "./none": ReasonCommandNotFound, "./plain/none": ReasonCommandNotFound,
	} {
		_, failed := launch.program(command, env, dir)
		g.Expect(failed).To(HaveOccurred(), command)
		g.Expect(failed.Reason).To(Equal(reason), "%s: %s", command, failed.Message)
	}
}
