// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/statedir"
	"github.com/berth-dev/berth/internal/tolerant"
)

// connectionFlags are the flags that select the API server and namespace, as in kubectl.
type connectionFlags struct {
	kubeconfig, namespace string
	allNamespaces         bool
	// overrides replace values of the kubeconfig, except the namespace.
	overrides clientcmd.ConfigOverrides
	endpoint  endpoint.FindOptions
}

// Environment variables that replace flags, for a user who always uses the same manager.
const (
	endpointVariable         = "BERTH_ENDPOINT"
	managerNamespaceVariable = "BERTH_MANAGER_NAMESPACE"
	serviceAccountVariable   = "BERTH_SERVICE_ACCOUNT"
)

// addEndpoint adds the flags of a command that connects to the manager.
func (f *connectionFlags) addEndpoint(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.endpoint.URL, "endpoint", "", "https address of the manager, which receives your token; default: "+endpointVariable+
		", then the published address if it is on this machine")
	flags.StringVar(&f.endpoint.CAFile, "endpoint-ca", "", "file with the certificate authority of the manager; default: the published one")
	flags.StringVar(&f.endpoint.ServiceAccount, "service-account", "", "NAMESPACE/NAME of a service account; the manager then receives a short-lived token of this account instead of your own; default: "+
		serviceAccountVariable)
	flags.StringVar(&f.endpoint.Namespace, "manager-namespace", "", "namespace of the installation; default: "+managerNamespaceVariable+", then "+endpoint.Namespace)
}

func (f *connectionFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig to use; default: KUBECONFIG, then ~/.kube/config, then the one of berth up")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the objects; default: the namespace of the context")
	overrides := pflag.NewFlagSet("", pflag.ContinueOnError)
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace = clientcmd.FlagInfo{}
	clientcmd.BindOverrideFlags(&f.overrides, overrides, names)
	overrides.VisitAll(func(flag *pflag.Flag) {
		flag.Hidden = !slices.Contains(shownOverrides, flag.Name)
		flags.AddFlag(flag)
	})
}

// shownOverrides are the flags of kubectl that the help of each command lists. The others are accepted too.
var shownOverrides = []string{"context", "as", "request-timeout"}

// connection is a connection to an API server.
type connection struct {
	config    *rest.Config
	client    client.WithWatch
	omitted   *omissions // nil in tests that use a fake client
	namespace string
	endpoint  endpoint.FindOptions
}

// manager connects to the endpoint of the manager that serves the log and the terminal of an object. object is nil if the user may not read it.
func (c *connection) manager(ctx context.Context, object process.Object) (*endpoint.Client, error) {
	opts := c.endpoint
	if object != nil {
		opts.Host = endpoint.HostOf(object)
	}
	opts.URL = cmp.Or(opts.URL, os.Getenv(endpointVariable))
	opts.ServiceAccount = cmp.Or(opts.ServiceAccount, os.Getenv(serviceAccountVariable))
	opts.Namespace = cmp.Or(opts.Namespace, os.Getenv(managerNamespaceVariable))
	return endpoint.Find(ctx, c.config, c.client, opts)
}

// managerNamespace returns the namespace of the installation.
func (c *connection) managerNamespace() string {
	return cmp.Or(c.endpoint.Namespace, os.Getenv(managerNamespaceVariable), endpoint.Namespace)
}

// connect uses the kubeconfig that kubectl would use. If there is none, it uses the kubeconfig of berth up.
func connect(flags *connectionFlags) (*connection, error) {
	ctrl.SetLogger(logr.Discard()) // the commands print errors, not logs
	config, namespace, err := loadConfig(flags)
	if err != nil {
		return nil, err
	}
	omitted := &omissions{}
	api, err := client.NewWithWatch(tolerant.Config(config, omitted.add), client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server %s: %w", config.Host, err)
	}
	return &connection{config: config, client: api, omitted: omitted, namespace: namespace, endpoint: flags.endpoint}, nil
}

// omissions collects the objects that do not decode, which are missing in lists.
type omissions struct {
	mu    sync.Mutex
	found []error
}

// maxOmissions bounds how many objects are kept and printed.
const maxOmissions = 20

func (o *omissions) add(bad *tolerant.Undecodable) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.found) < maxOmissions {
		o.found = append(o.found, bad)
	}
}

// omitSilently is for clients of a process whose manager reports the objects that do not decode.
func omitSilently(*tolerant.Undecodable) {}

// take returns the objects that were omitted since the last call.
func (o *omissions) take() []error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.found
	o.found = nil
	return found
}

func loadConfig(flags *connectionFlags) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = flags.kubeconfig
	if flags.kubeconfig == "" && flags.overrides.ClusterInfo.Server == "" && !anyExists(rules.Precedence) {
		own := controlplane.KubeconfigPath(defaultStateDir())
		if !anyExists([]string{own}) {
			return nil, "", errors.New("no kubeconfig found: start a control plane with berth up, or set --kubeconfig or KUBECONFIG")
		}
		rules.ExplicitPath = own
	}
	overrides := flags.overrides
	overrides.Context.Namespace = flags.namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.UserAgent = "berth"
	config.QPS = -1 // no limit in the client, as berth mcp may serve many agents: the API server limits requests by priority and fairness
	return config, namespace, nil
}

func anyExists(paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// defaultStateDir returns $XDG_STATE_HOME/berth, or ~/.local/state/berth if that variable is not an absolute path.
func defaultStateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ".berth"
	}
	return filepath.Join(home, ".local", "state", "berth")
}

// explain adds a remedy to an error, if it knows one.
func explain(err error) error {
	var dial *net.OpError
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the API server does not serve the kinds of berth.dev: is it the right one? berth up prints the KUBECONFIG of its API server; "+
			"on other API servers, install the CRDs first (%w)", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server rejects these credentials: check KUBECONFIG (%w)", err)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%w: is the API server running? berth up starts a control plane on this machine", err)
	default:
		return err
	}
}

// writeKubeconfig merges data into the kubeconfig file at path and makes the context of data the current one. Other entries of the file are kept.
func writeKubeconfig(path string, data []byte) error {
	ours, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	merged, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		merged = ours
	case err != nil:
		return fmt.Errorf("add to the kubeconfig %s: %w", path, err)
	default:
		maps.Copy(merged.Clusters, ours.Clusters)
		maps.Copy(merged.AuthInfos, ours.AuthInfos)
		maps.Copy(merged.Contexts, ours.Contexts)
		merged.CurrentContext = ours.CurrentContext
	}
	out, err := clientcmd.Write(*merged)
	if err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, out) {
		return nil
	}
	return statedir.Write(path, out)
}
