// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestHolder_ClaimsOnlyANameThatNobodyElseHolds(t *testing.T) {
	own := Holder{Start: "new", Directory: "/a", Inode: 7}
	for name, test := range map[string]struct {
		other    Holder
		original bool
		want     claim
	}{
		"no manager before":                             {Holder{}, false, claimFree},
		"restarted after kill -9 or a reboot":           {Holder{"old", "/a", 7}, false, claimFree},
		"restarted after a regular end":                 {Holder{"", "/a", 7}, false, claimFree},
		"moved within its file system":                  {Holder{"old", "/b", 7}, false, claimFree},
		"moved to another file system after an end":     {Holder{"", "/b", 8}, false, claimFree},
		"moved to another file system after kill -9":    {Holder{"old", "/b", 8}, false, claimWatch},
		"restored in its place after kill -9":           {Holder{"old", "/a", 8}, false, claimWatch},
		"a copy whose original is used":                 {Holder{"old", "/b", 8}, true, claimCopy},
		"a copy whose original is not used at present":  {Holder{"", "/b", 8}, true, claimCopy},
		"a copy with the inode number of its original":  {Holder{"old", "/b", 7}, true, claimCopy},
		"a system without inode numbers, after kill -9": {Holder{"old", "/b", 0}, false, claimWatch},
	} {
		if got := own.claimFrom(test.other, test.original); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
	if got := (Holder{Start: "new", Directory: "/a"}).claimFrom(Holder{"old", "/b", 0}, false); got != claimWatch {
		t.Errorf("without inode numbers, no directory was moved: got %d", got)
	}
}

// starter starts managers of one host with directories on disk.
type starter struct {
	*fixture
	name string
}

// newStarter returns the path of a state directory that has a name.
func newStarter(t *testing.T) (s *starter, directory string) {
	t.Helper()
	g := NewWithT(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	directory = filepath.Join(root, "original")
	name, err := Name(directory)
	g.Expect(err).NotTo(HaveOccurred())
	return &starter{newFixture(t), name}, directory
}

func (s *starter) start(t *testing.T, directory string) *Hosts {
	t.Helper()
	g := NewWithT(t)
	g.Expect(Name(directory)).To(Equal(s.name))
	holder, err := NewHolder(directory)
	g.Expect(err).NotTo(HaveOccurred())
	h := s.newHosts(s.name, v1alpha1.RuntimeHost)
	h.options.Holder = holder
	return h
}

func (s *starter) lease(g Gomega) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	g.Expect(s.api.Get(context.Background(), client.ObjectKey{Namespace: "berth-system", Name: leasePrefix + s.name}, lease)).To(Succeed())
	return lease
}

// TestAcquire_RefusesACopyOfTheDirectory checks two directories with one name. The clock stands still, so a wait would not end.
func TestAcquire_RefusesACopyOfTheDirectory(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, original := newStarter(t)
	copied := original + "-copy"
	g.Expect(os.CopyFS(copied, os.DirFS(original))).To(Succeed())
	first := s.start(t, original)
	g.Expect(first.Acquire(t.Context())).To(Succeed())
	for _, state := range []string{"the original is used", "the original has ended"} {
		err := s.start(t, copied).Acquire(ctx)
		g.Expect(err).To(MatchError(And(ContainSubstring(original), ContainSubstring(copied), ContainSubstring("is a copy of it"),
			ContainSubstring("an empty directory"), ContainSubstring(s.name))), state)
		g.Expect(s.lease(g).Annotations).To(HaveKeyWithValue(annotationDirectory, original), state)
		first.release(t.Context())
	}
	g.Expect(os.Rename(original, original+".bak")).To(Succeed())
	g.Expect(s.start(t, copied).Acquire(t.Context())).To(Succeed(), "the copy replaces the original")
	g.Expect(s.start(t, original+".bak").Acquire(t.Context())).To(MatchError(ContainSubstring("is a copy of it")))
}

// TestAcquire_DoesNotWaitAfterARestart checks restarts of one manager. The clock stands still, so a wait would not end.
func TestAcquire_DoesNotWaitAfterARestart(t *testing.T) {
	for name, change := range map[string]func(g Gomega, last *Hosts, directory string) string{
		"after kill -9": func(_ Gomega, _ *Hosts, directory string) string { return directory },
		"after kill -9 and a move": func(g Gomega, _ *Hosts, directory string) string {
			g.Expect(os.Rename(directory, directory+"-moved")).To(Succeed())
			return directory + "-moved"
		},
		"by another path": func(g Gomega, _ *Hosts, directory string) string {
			g.Expect(os.Symlink(directory, directory+"-link")).To(Succeed())
			return directory + "-link"
		},
		"after an end and a move to another file system": func(g Gomega, last *Hosts, directory string) string {
			last.release(context.Background())
			g.Expect(os.CopyFS(directory+"-moved", os.DirFS(directory))).To(Succeed())
			g.Expect(os.RemoveAll(directory)).To(Succeed())
			return directory + "-moved"
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, directory := newStarter(t)
			first := s.start(t, directory)
			g.Expect(first.Acquire(t.Context())).To(Succeed())
			g.Expect(first.report(t.Context())).To(Succeed())
			second := s.start(t, change(g, first, directory))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			g.Expect(second.Acquire(ctx)).To(Succeed())
			g.Expect(s.lease(g).Spec.HolderIdentity).To(HaveValue(Equal(s.name + "_" + second.options.Holder.Start)))
			g.Expect(second.report(t.Context())).To(Succeed())
		})
	}
}

// TestAcquire_WatchesTheLeaseIfTheDirectoryCannotTell checks a directory that was restored or moved to another file system, whose manager may still run.
func TestAcquire_WatchesTheLeaseIfTheDirectoryCannotTell(t *testing.T) {
	for name, renews := range map[string]bool{"the manager was killed": false, "the manager runs in another container": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, directory := newStarter(t)
			first := s.start(t, directory)
			g.Expect(first.Acquire(t.Context())).To(Succeed())
			g.Expect(os.CopyFS(directory+"-moved", os.DirFS(directory))).To(Succeed())
			g.Expect(os.RemoveAll(directory)).To(Succeed())
			second, ended := s.start(t, directory+"-moved"), make(chan error, 1)
			go func() { ended <- second.Acquire(t.Context()) }()
			var err error
			g.Eventually(func() bool {
				if s.clock.HasWaiters() {
					s.clock.Step(time.Second)
				}
				if renews {
					g.Expect(first.report(t.Context())).To(Succeed())
				}
				select {
				case err = <-ended:
					return true
				default:
					return false
				}
			}).WithTimeout(30 * time.Second).Should(BeTrue())
			if renews {
				g.Expect(err).To(MatchError(ContainSubstring("has the same name")))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(holderOf(s.lease(g)).Directory).To(Equal(directory + "-moved"))
		})
	}
}

func TestAcquire_OneOfTwoSimultaneousStartsWins(t *testing.T) {
	g := NewWithT(t)
	s, original := newStarter(t)
	copied := original + "-copy"
	g.Expect(os.CopyFS(copied, os.DirFS(original))).To(Succeed())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 2)
	for _, h := range []*Hosts{s.start(t, original), s.start(t, copied)} {
		go func() { ended <- h.Acquire(ctx) }()
	}
	g.Expect([]error{<-ended, <-ended}).To(ConsistOf(BeNil(), MatchError(errHeld)))
}

func TestAcquire_AllowsAnAccountThatMayNotUpdateTheLeaseYet(t *testing.T) {
	g := NewWithT(t)
	s, directory := newStarter(t)
	s.api = interceptor.NewClient(s.api.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "berth-host", errors.New("no role"))
		},
	})
	g.Expect(s.start(t, directory).Acquire(t.Context())).To(Succeed())
}

func TestHosts_EndWhenAnotherManagerTakesTheName(t *testing.T) {
	g := NewWithT(t)
	s, directory := newStarter(t)
	first, ended := s.start(t, directory), make(chan error, 1)
	go func() { ended <- first.Start(t.Context()) }()
	g.Eventually(s.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
	second := s.start(t, directory)
	g.Expect(second.report(t.Context())).To(Succeed())
	s.clock.Step(Interval)
	g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(MatchError(ContainSubstring("has lost it to that manager"))))
	g.Expect(holderOf(s.lease(g)).Start).To(Equal(second.identity()), "the first manager does not take the name back")
}

// TestHosts_KeepTheNameIfTheirLeaseWasDeleted checks a Lease that another manager creates between a deletion and the next renewal, which an account that may not
// update the Lease can do.
func TestHosts_KeepTheNameIfTheirLeaseWasDeleted(t *testing.T) {
	g := NewWithT(t)
	s, directory := newStarter(t)
	number := 0
	s.api = interceptor.NewClient(s.api.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			number++
			object.SetUID(types.UID(strconv.Itoa(number)))
			return api.Create(ctx, object, opts...)
		},
	})
	first, second := s.start(t, directory), s.start(t, directory)
	g.Expect(first.report(t.Context())).To(Succeed())
	g.Expect(s.api.Delete(t.Context(), s.lease(g))).To(Succeed())
	g.Expect(second.report(t.Context())).To(Succeed())
	g.Expect(first.report(t.Context())).To(Succeed())
	g.Expect(holderOf(s.lease(g)).Start).To(Equal(first.identity()))
	g.Expect(second.report(t.Context())).To(MatchError(errHeld))
	g.Expect(first.report(t.Context())).To(Succeed())
}

func TestHosts_PublishTheirEndpointUntilTheyEnd(t *testing.T) {
	g := NewWithT(t)
	s, directory := newStarter(t)
	h := s.start(t, directory)
	served := Endpoint{URL: "https://127.0.0.1:1", Authority: []byte("ca\n")}
	h.options.Endpoint = func() Endpoint { return served }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Start(ctx) }()
	find := func() Endpoint {
		found, err := EndpointOf(t.Context(), s.api, "berth-system", s.name)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	g.Eventually(find).WithTimeout(30 * time.Second).Should(Equal(served))
	g.Eventually(s.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
	g.Expect(s.api.Delete(t.Context(), s.lease(g))).To(Succeed())
	g.Expect(find()).To(Equal(Endpoint{}))
	s.clock.Step(Interval)
	g.Eventually(find).WithTimeout(30*time.Second).Should(Equal(served), "a deleted Lease is created again")
	renewed := s.lease(g).Spec.RenewTime

	g.Eventually(s.clock.HasWaiters).WithTimeout(30 * time.Second).Should(BeTrue())
	s.clock.Step(time.Second)
	cancel()
	g.Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
	g.Expect(find().URL).To(BeEmpty(), "a host that has ended has no address")
	g.Expect(s.lease(g).Spec.RenewTime.Equal(renewed)).To(BeTrue(), "the release is no renewal")
}

func TestEndpoints_PreferHostsThatReport(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, test := range map[string]struct{ leases, want string }{
		"one":                     {"a", "a"},
		"two":                     {"a b", "a b"},
		"one was killed":          {"a old", "a"},
		"all were killed":         {"old", "old"},
		"a clock was turned back": {"future", "future"},
		"without an endpoint":     {"a none", "a"},
		"none":                    {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			for _, host := range strings.Fields(test.leases) {
				age, address := map[string]time.Duration{"old": time.Hour, "future": -time.Hour}[host], "https://127.0.0.1:1"
				if host == "none" {
					address = ""
				}
				g.Expect(f.api.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: leasePrefix + host, Labels: map[string]string{v1alpha1.LabelHost: host},
						Annotations: map[string]string{annotationEndpoint: address}},
					Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-age)))},
				})).To(Succeed())
			}
			found, err := Endpoints(t.Context(), f.api, "berth-system", now)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(HaveLen(len(strings.Fields(test.want))))
			for _, host := range strings.Fields(test.want) {
				g.Expect(found).To(HaveKey(host))
			}
		})
	}
}
