// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/tolerant"
)

// showEvery is how often the table of berth up is refreshed. The objects come from the cache of the manager.
const showEvery = 250 * time.Millisecond

// gcPercent is by how many percent the heap of berth up may grow before it is collected. Go's default, 100, is for programs that compute more.
const gcPercent = 50

// prepareTimeout bounds how long berth up waits for an API server that exits during the preparation.
const prepareTimeout = 2 * time.Minute

// upFlags holds the values of the flags of berth up.
type upFlags struct {
	runtimeOptions
	manifests, kubeconfig, assets string
	keep, detach, hideObjects     bool
	// notify sends notifications, as berth notify with the flags notifying does. Each of these flags sets it.
	notify    bool
	notifying notifyFlags
}

func (a *app) upCommand() *cobra.Command {
	f := &upFlags{}
	command := &cobra.Command{
		Use:   "up",
		Short: "Run a Kubernetes API server and the controllers on this machine until Ctrl-C",
		Long: "Up runs berth-apiserver, a Kubernetes API server with its own etcd, on loopback, installs the CRDs of Berth and runs the controllers.\n" +
			"Ctrl-C stops the processes, except adopted ones, and the control plane. The objects are kept, and the next berth up starts their processes again.\n" +
			"With --keep the processes keep running, and the next berth up takes them over. A second Ctrl-C exits immediately.\n" +
			"With --detach, berth up runs in the background, and berth down stops it.",
		Example: "  # Run the objects that the manifests in a directory describe\n" +
			"  berth up -f manifests/\n\n" +
			"  # Add the cluster to the default kubeconfig, and leave the processes running on exit\n" +
			"  berth up --kubeconfig ~/.kube/config --keep",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			command.Flags().Visit(func(flag *pflag.Flag) { f.notify = f.notify || strings.HasPrefix(flag.Name, notifyPrefix) })
			if f.detach {
				return a.detach(command.Context(), command, f)
			}
			return a.up(command.Context(), f)
		},
	}
	f.addLocations(command)
	flags := command.Flags()
	flags.StringVarP(&f.manifests, "filename", "f", "", "apply the manifests of this file or directory")
	flags.BoolVarP(&f.detach, "detach", "d", false, "run in the background; return once the API server is ready and the manifests are applied")
	flags.BoolVar(&f.hideObjects, "hide-objects", false, "do not show the objects and their changes")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "add the cluster and credentials to this kubeconfig; default: the file kubeconfig in the state directory")
	flags.BoolVar(&f.keep, "keep", false, "leave the processes running on exit")
	flags.StringVar(&f.runAsName, "run-as", "", runAsHelp)
	flags.BoolVar(&f.notify, "notify", false, "notify you when an object begins to wait for you; see berth notify")
	f.notifying.addTo(flags, notifyPrefix)
	return command
}

// addLocations adds the flags that berth up and berth down share: the state directory and the helper programs.
func (f *upFlags) addLocations(command *cobra.Command) {
	flags := command.Flags()
	f.addTo(flags, "directory for all data, keys and process records")
	flags.StringVar(&f.assets, "assets", "", "directory with berth-apiserver; default: KUBEBUILDER_ASSETS, the directory of this program, or PATH")
}

// controlPlane returns the options of the control plane.
func (f *upFlags) controlPlane(a *app) controlplane.Options {
	return controlplane.Options{StateDir: f.stateDir, Assets: f.assets, Progress: func(line string) { a.say("%s", line) }}
}

func (a *app) up(ctx context.Context, f *upFlags) (err error) {
	defer outlivePipes()()
	a, flush := a.inBackground()
	defer flush()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	manifests, beside, err := a.resolve(f)
	if err != nil {
		return err
	}
	plane, err := controlplane.Start(ctx, f.controlPlane(a))
	if err != nil {
		return err
	}
	defer func() {
		a.say("stopping the control plane")
		err = errors.Join(err, plane.Stop())
	}()
	logs, err := openLog(controlplane.ManagerLogPath(f.stateDir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	f.log = useLogger(logs, slog.LevelInfo, logText)
	config := plane.Config()
	config.UserAgent = "berth"
	api, err := client.New(tolerant.Config(config, omitSilently), client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return fmt.Errorf("connect to the control plane: %w", err)
	}
	kubeconfig, err := a.prepareReachable(ctx, f, plane, config, api, manifests)
	if err != nil {
		return ended(ctx, err)
	}
	opened, err := a.newRuntime(f.runtimeOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	name, err := hosts.Name(f.stateDir)
	if err != nil {
		return err
	}
	holder, err := hosts.NewHolder(f.stateDir)
	if err != nil {
		return err
	}
	// The Lease is in the state directory too, which only one manager can use, so it need not be acquired.
	host := manager.Host{Name: name, Namespace: endpoint.Namespace, Runtimes: machineRuntimes, Holder: holder}
	mgr, err := assemble(config, opened, f.log, manager.Options{Host: host, Hooks: hook.Locate(f.stateDir, f.runAs)}, endpoint.Options{})
	if err != nil {
		return err
	}
	defer claimAtCreation(ctx, api, name, f.log)()
	_, _ = fmt.Fprintf(a.out, readyPrefix+"%s\n", printable.Quote(kubeconfig))
	failure := a.supervise(ctx, mgr, plane, beside)
	if f.keep || failure != nil {
		// After a failure, the user did not request this shutdown, and the API that records stops may have failed.
		a.say("the processes keep running; berth up with the same state directory takes them over")
		return failure
	}
	return a.endWorkloads(ctx, api, opened)
}

// resolve reads what the flags name, so that errors in it are reported before anything is started.
func (a *app) resolve(f *upFlags) (manifests []manifest, beside []besideFunc, err error) {
	if f.runAs, err = lookUpUser(f.runAsName); err != nil {
		return nil, nil, err
	}
	if f.manifests != "" {
		if manifests, err = readManifests(f.manifests); err != nil {
			return nil, nil, err
		}
	}
	beside, err = a.besideManager(f)
	return manifests, beside, err
}

// ended returns nil if the context is done, because that shutdown was requested; otherwise it returns err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // as documented
	}
	return err
}

// prepareReachable repeats prepare while the API server cannot be reached: the control plane restarts one that has exited, and reports if it cannot.
func (a *app) prepareReachable(ctx context.Context, f *upFlags, plane *controlplane.ControlPlane, config *rest.Config, api client.Client, manifests []manifest,
) (kubeconfig string, err error) {
	waiting := wait.PollUntilContextTimeout(ctx, pollEvery, prepareTimeout, true, func(ctx context.Context) (bool, error) {
		if kubeconfig, err = a.prepare(ctx, f, plane, config, api, manifests); err == nil || !temporary(err) {
			return true, err
		}
		select {
		case failure := <-plane.Failed():
			return false, failure
		default:
			return false, nil
		}
	})
	return kubeconfig, cmp.Or(err, waiting)
}

// prepare installs the kinds, the kubeconfig, the roles and the manifests before the controllers start. It returns the path of the kubeconfig.
func (a *app) prepare(ctx context.Context, f *upFlags, plane *controlplane.ControlPlane, config *rest.Config, api client.Client, manifests []manifest) (string, error) {
	if err := installCRDs(ctx, config); err != nil {
		return "", err
	}
	path := controlplane.KubeconfigPath(f.stateDir)
	if f.kubeconfig != "" {
		path = f.kubeconfig
		if err := writeKubeconfig(path, plane.Kubeconfig()); err != nil {
			return "", err
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	if err := installRoles(ctx, api); err != nil {
		return "", err
	}
	if err := awaitUnclaimed(ctx, api); err != nil {
		return "", err
	}
	if len(manifests) == 0 {
		return path, nil
	}
	if err := awaitNamespace(ctx, api, corev1.NamespaceDefault); err != nil {
		return "", err
	}
	if err := applyManifests(ctx, api, manifests, corev1.NamespaceDefault, a.say); err != nil {
		return "", fmt.Errorf("some manifests were not applied:\n%w", err)
	}
	return path, nil
}

// supervise runs the manager until the context is done, or until the control plane or the manager fails. It returns the failure. Meanwhile it
// runs the functions of beside.
func (a *app) supervise(ctx context.Context, mgr *assembled, plane *controlplane.ControlPlane, beside []besideFunc) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	finished := make(chan error, 1)
	go func() { finished <- mgr.start(running) }()
	limited, end := context.WithCancel(ctx)
	defer end()
	var others sync.WaitGroup
	for _, run := range beside {
		others.Go(func() { run(limited, mgr) })
	}
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-plane.Failed():
	case failure = <-finished:
		if failure == nil {
			failure = errors.New("the manager stopped unexpectedly")
		}
		finished <- nil
	}
	end()
	others.Wait()
	if failure == nil {
		a.say("stopping; press Ctrl-C again to exit immediately")
	}
	stop()
	if err := <-finished; err != nil && failure == nil {
		// A component that did not stop in time must not prevent the rest of the shutdown.
		a.say("the manager did not stop cleanly: %v", err)
	}
	return failure
}

// besideFunc runs beside the manager of berth up until the context is done.
type besideFunc = func(context.Context, *assembled)

// besideManager returns the functions to run beside the manager: the table and the notifications. It returns an error if a flag is invalid.
func (a *app) besideManager(f *upFlags) (all []besideFunc, err error) {
	if !f.hideObjects {
		all = append(all, a.showTable)
	}
	if !f.notify {
		return all, nil
	}
	notifier, err := a.notifier(&f.notifying, notifyPrefix)
	if errors.Is(err, errNoChannel) {
		a.say("warning: %v", err) // the processes matter more
		return all, nil
	}
	return append(all, func(ctx context.Context, mgr *assembled) { a.notifyBeside(ctx, mgr, f, notifier) }), err
}

func (a *app) endWorkloads(ctx context.Context, api client.Client, opened *backends) error {
	// The signal has canceled ctx, so endAll gets a context without cancellation. The grace periods bound how long endAll takes.
	return (&processStopper{api, opened.registry, a.clock, a.say}).endAll(context.WithoutCancel(ctx))
}

// showTable shows the objects in the cache of the manager until the context is done.
func (a *app) showTable(ctx context.Context, mgr *assembled) {
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return
	}
	board := newBoard(a.raw, true)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		var rows []row
		for _, kind := range shownKinds {
			some, err := listKind(ctx, mgr.GetClient(), kind, "", false)
			if err != nil {
				return
			}
			rows = append(rows, rowsOf(some)...)
		}
		board.show(rows, a.clock.Now())
	}, showEvery)
}
