// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/test/need"
)

// mountSmallDisk mounts a file system of the given size. It needs root.
func mountSmallDisk(t *testing.T, mebibytes int) string {
	t.Helper()
	return mountTmpfs(t, fmt.Sprintf("size=%dm", mebibytes))
}

// mountTmpfs mounts a file system with the given limits. It needs root.
func mountTmpfs(t *testing.T, limits string) string {
	t.Helper()
	need.Root(t, "mount a small file system to fill")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, limits+",mode=0700"); err != nil {
		need.Machine(t, fmt.Errorf("a small file system to fill cannot be mounted here: %w", err))
	}
	t.Cleanup(func() { NewWithT(t).Expect(unix.Unmount(dir, unix.MNT_DETACH)).To(Succeed()) })
	return dir
}

func TestStart_FailsWithoutDiskSpace(t *testing.T) {
	g := NewWithT(t)
	dir := mountSmallDisk(t, 32)
	_, err := Start(t.Context(), Options{StateDir: dir, Assets: assets(t)})
	g.Expect(err).To(MatchError(ContainSubstring("no space left in " + dir)))
}

// A file system without inodes has space, and yet no file can be created.
func TestStart_FailsWithoutInodes(t *testing.T) {
	g := NewWithT(t)
	dir := mountTmpfs(t, "size=512m,nr_inodes=40")
	useInodes(g, dir, 12)
	_, err := Start(t.Context(), Options{StateDir: dir, Assets: assets(t)})
	g.Expect(err).To(MatchError(MatchRegexp(`no inodes left in %s: \d+ of 40 are free, and the control plane needs 32; delete files there`, regexp.QuoteMeta(dir))))
}

// TestControlPlane_ContinuesAfterInodesRanOut uses all inodes, ends the control plane, and expects that it starts again when there are inodes.
func TestControlPlane_ContinuesAfterInodesRanOut(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	progress := &progressLog{}
	dir := mountTmpfs(t, "size=1g,nr_inodes=400")
	c, err := Start(ctx, Options{StateDir: dir, Assets: assets(t), Progress: progress.add})
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	defer closeIdle(g, c)
	defer func() { g.Expect(c.Stop()).To(Succeed()) }()
	api, err := client.New(c.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	used := useInodes(g, dir, 400)
	g.Expect(unix.Kill(c.child.record.PID, unix.SIGKILL)).To(Succeed())
	g.Eventually(progress.String, time.Minute).Should(ContainSubstring("no inodes left in " + dir))
	g.Expect(os.RemoveAll(used)).To(Succeed())
	g.Eventually(func() error { return api.Create(ctx, largeConfigMap("after", 0)) }, 2*time.Minute, 100*time.Millisecond).Should(Succeed(), progress.String)
	g.Expect(c.Failed()).NotTo(Receive())
}

// useInodes creates empty files until the file system of a directory has no inode left, at most count. It returns their directory.
func useInodes(g Gomega, dir string, count int) (used string) {
	used = filepath.Join(dir, "used")
	g.Expect(os.Mkdir(used, 0o700)).To(Succeed())
	for i := range count {
		err := os.WriteFile(filepath.Join(used, strconv.Itoa(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return used
		}
		g.Expect(err).NotTo(HaveOccurred())
	}
	return used
}

// TestControlPlane_ContinuesAfterFullDisk fills the disk of the control plane, which reports this, waits for space, and then serves all objects.
func TestControlPlane_ContinuesAfterFullDisk(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	progress := &progressLog{}
	dir := mountSmallDisk(t, 512)
	c, err := Start(ctx, Options{StateDir: dir, Assets: assets(t), Progress: progress.add})
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	defer closeIdle(g, c)
	defer func() { g.Expect(c.Stop()).To(Succeed()) }()
	api, err := client.New(c.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	kept := largeConfigMap("kept", 0)
	g.Eventually(func() error { return api.Create(ctx, kept) }, time.Minute, 100*time.Millisecond).Should(Succeed())

	filler := filepath.Join(dir, "filler")
	fillDisk(g, filler)
	number := 0
	g.Eventually(func() string {
		number++
		_ = api.Create(ctx, largeConfigMap("more", number))
		return progress.String()
	}, 2*time.Minute, time.Millisecond).Should(ContainSubstring("no space left in " + dir))
	g.Expect(os.Remove(filler)).To(Succeed())
	g.Eventually(func() error { return api.Create(ctx, largeConfigMap("after", 0)) }, 2*time.Minute, 100*time.Millisecond).Should(Succeed(), progress.String)
	g.Expect(api.Get(ctx, client.ObjectKeyFromObject(kept), &corev1.ConfigMap{})).To(Succeed())
	g.Expect(c.Failed()).NotTo(Receive())
}

// fillDisk uses all the remaining space.
func fillDisk(g Gomega, path string) {
	file, err := os.Create(path)
	g.Expect(err).NotTo(HaveOccurred())
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = file.Write(block)
	}
	g.Expect(err).To(MatchError(unix.ENOSPC))
	g.Expect(file.Close()).To(Succeed())
}

// largeConfigMap returns an object of half a MiB.
func largeConfigMap(name string, number int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", name, number)},
		Data: map[string]string{"text": strings.Repeat("x", 1<<19)}}
}

// churnVariable is the environment variable that sets how many MiB TestChurnIsBounded writes.
const churnVariable = "BERTH_CHURN_MIB"

// churnAmount returns how many bytes TestChurnIsBounded writes, and how long it may take.
func churnAmount(g Gomega) (amount int64, limit time.Duration) {
	text := os.Getenv(churnVariable)
	if text == "" {
		return 3 * etcdQuota, 5 * time.Minute
	}
	mib, err := strconv.ParseInt(text, 10, 64)
	g.Expect(err).NotTo(HaveOccurred(), churnVariable)
	return mib << 20, time.Duration(mib) * time.Second
}

// totalSize returns the total size of the files in a directory. It ignores files that are removed meanwhile.
func totalSize(g Gomega, dir string) (size int64) {
	g.Expect(filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		if info, err := entry.Info(); err == nil {
			size += info.Size()
		}
		return nil
	})).To(Succeed())
	return size
}

// updateAll changes all objects concurrently, and retries for a minute while the control plane does not respond.
func updateAll(ctx context.Context, api client.Client, objects []*corev1.ConfigMap, written int64) error {
	var all errgroup.Group
	for _, object := range objects {
		all.Go(func() error {
			object.ResourceVersion = "" // overwrite without an optimistic lock
			object.Annotations = map[string]string{"written": fmt.Sprint(written)}
			var err error
			_ = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
				err = api.Update(ctx, object)
				return err == nil, nil
			})
			return err
		})
	}
	return all.Wait()
}

// TestChurnIsBounded changes four objects until etcd has written three times its quota of 48 MiB. The database file may exceed the quota by at most 32 MiB, and
// writes must still succeed. BERTH_CHURN_MIB sets another amount. A busy berth wrote 151 MB in 18 minutes, which is 12 GB in 24 hours: BERTH_CHURN_MIB=12288.
func TestChurnIsBounded(t *testing.T) {
	g := NewWithT(t)
	before := etcdQuota
	etcdQuota = 48 << 20
	defer func() { etcdQuota = before }()
	amount, limit := churnAmount(g)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	progress := &progressLog{}
	c, err := Start(ctx, Options{StateDir: t.TempDir(), Assets: assets(t), Progress: progress.add})
	g.Expect(err).NotTo(HaveOccurred(), progress.String())
	defer closeIdle(g, c)
	defer func() { g.Expect(c.Stop()).To(Succeed()) }()
	config := c.Config()
	config.QPS = -1 // only the control plane limits the writes
	api, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	largest, disk, began := int64(0), int64(0), time.Now()
	var changed []*corev1.ConfigMap
	for i := range 4 { // several objects, so that several writes share one flush to the disk
		object := largeConfigMap("changed", i)
		g.Eventually(func() error { return api.Create(ctx, object) }, time.Minute, 100*time.Millisecond).Should(Succeed())
		changed = append(changed, object)
	}
	batch := int64(len(changed)) << 19
	for written := int64(0); written < amount; written += batch {
		g.Expect(updateAll(ctx, api, changed, written)).To(Succeed(), progress.String)
		if info, err := os.Stat(filepath.Join(c.dir.root, "etcd", "member", "snap", "db")); err == nil {
			// bbolt grows its file in steps of 16 MiB.
			g.Expect(info.Size()).To(BeNumerically("<=", etcdQuota+32<<20))
			largest = max(largest, info.Size())
		}
		done := written + batch
		if done%(128<<20) != 0 && done != amount {
			continue
		}
		// The write-ahead log contains up to 250 changes until the next snapshot, and etcd keeps its last 5 files of 64 MiB.
		disk = max(disk, totalSize(g, filepath.Join(c.dir.root, "etcd", "member")))
		g.Expect(disk).To(BeNumerically("<=", etcdQuota+32<<20+250<<19+6*64<<20))
		t.Logf("wrote %d MiB in %s: with a quota of %d MiB the file had at most %d MiB, with the write-ahead log %d MiB",
			done>>20, time.Since(began).Round(time.Second), etcdQuota>>20, largest>>20, disk>>20)
	}
	g.Expect(c.Failed()).NotTo(Receive())
}
