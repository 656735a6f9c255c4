// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// If a program forks twice to leave a daemon in the background, its exit names the daemon.
func TestExit_NamesDaemonLeftBehind(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		dir := f.TempDir()
		ready, never := filepath.Join(dir, "ready"), filepath.Join(dir, "never")
		f.Expect(syscall.Mkfifo(ready, 0o600)).To(Succeed())
		f.Expect(syscall.Mkfifo(never, 0o600)).To(Succeed())
		process := f.process("daemon", 1)
		process.Command = []string{"/bin/sh", "-c", `(setsid sh -c 'echo up >"$0"; read word <"$1"' "$0" "$1" &); read word <"$0"`, ready, never}
		f.Expect(f.Start(f.ctx, process)).To(Succeed())
		exit := f.await("daemon", facts.Exited).Exit
		f.Expect(exit.Code).To(BeZero())
		f.Expect(exit.Left).To(Equal("sh"))
	})
}

func TestExit_NamesNoDaemonAfterStop(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		f.start("asked", "sleep")
		f.await("asked", facts.Running)
		f.Expect(f.Stop(f.ctx, "asked", 1)).To(Succeed())
		f.Expect(f.await("asked", facts.Exited).Exit.Left).To(BeEmpty())
	})
}

// A stop sends SIGHUP to a shell and to its jobs. A job that exits later than the shell, for example because it saves its work, is not killed before it has
// finished.
func TestStop_GivesJobsTimeToReact(t *testing.T) {
	forEachTier(t, func(f *fixture) {
		for uid, orphaned := range map[types.UID]bool{"with-shim": false, "without-shim": true} {
			dir := f.TempDir()
			up, ready, saved := filepath.Join(dir, "up"), filepath.Join(dir, "ready"), filepath.Join(dir, "saved")
			f.Expect(syscall.Mkfifo(up, 0o600)).To(Succeed())
			f.Expect(syscall.Mkfifo(ready, 0o600)).To(Succeed())
			process := f.process(uid, 1)
			process.StopSignal = "SIGHUP"
			job := `trap "sleep 0.2; echo saved >$1; exit" HUP; echo up >"$0"; while :; do sleep 0.05; done`
			process.Command = []string{"/bin/sh", "-c", `sh -c "$3" "$0" "$2" & read word <"$0"; trap "exit 0" HUP; echo ready >"$1"; wait`, up, ready, saved, job}
			f.Expect(f.Start(f.ctx, process)).To(Succeed())
			f.Expect(os.ReadFile(ready)).To(BeEquivalentTo("ready\n"))
			f.await(uid, facts.Running)
			if orphaned {
				f.killShim(uid)
			}
			f.Expect(f.Stop(f.ctx, uid, 1)).To(Succeed())
			f.await(uid, facts.Exited)
			f.Expect(os.ReadFile(saved)).To(BeEquivalentTo("saved\n"), "%s", uid)
		}
	})
}
