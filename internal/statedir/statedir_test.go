// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

func TestMake_RefusesUnsafeDirectories(t *testing.T) {
	for name, test := range map[string]struct {
		mode    os.FileMode // 0: the directory does not exist
		content bool
		uid     int // 0: the user that runs the test
		wantErr string
	}{
		"new":                          {},
		"readable by others":           {mode: 0o755, content: true},
		"empty and writable by group":  {mode: 0o775},
		"filled and writable by group": {mode: 0o770, content: true, wantErr: "can be written to by other users (mode 0770)"},
		"filled and writable by all":   {mode: 0o707, content: true, wantErr: "chmod 700"},
		"of another user":              {mode: 0o700, uid: 65534, wantErr: "belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if test.uid != 0 {
				need.Root(t, "give a directory to another user")
			}
			dir := filepath.Join(t.TempDir(), "a", "b")
			if test.mode != 0 {
				g.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
				g.Expect(os.Chmod(dir, test.mode)).To(Succeed())
			}
			if test.content {
				g.Expect(os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)).To(Succeed())
			}
			if test.uid != 0 {
				g.Expect(os.Chown(dir, test.uid, test.uid)).To(Succeed())
			}
			made, err := Make(dir)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(made).To(Equal(dir))
			info, err := os.Stat(dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o700))
		})
	}
	_, err := Make("")
	NewWithT(t).Expect(err).To(HaveOccurred())
}

func TestWrite_ReplacesFile(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "file")
	for _, text := range []string{"old, and longer", "new"} {
		g.Expect(Write(path, []byte(text))).To(Succeed())
		g.Expect(os.ReadFile(path)).To(BeEquivalentTo(text))
	}
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600))
	g.Expect(Write(filepath.Join(dir, "a"), nil)).NotTo(Succeed(), "a directory cannot be replaced")
	files, err := filepath.Glob(filepath.Join(dir, ".*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(BeEmpty(), "a failure leaves no temporary file")
}

// FuzzReadJSON checks that ReadJSON returns an error for a damaged record, and never reports the record as found.
func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(`{"version":1,"uid":"web","incarnation":3,"token":"t"}`))
	f.Add([]byte(`{"incarnation":`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "spec.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var record struct{ Incarnation int64 }
		found, err := ReadJSON(path, &record)
		if found == (err != nil) {
			t.Errorf("%q: found %v with the error %v", text, found, err)
		}
	})
}
