// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/need"
)

const (
	// kubeconfigVariable is the environment variable with the kubeconfig of the cluster.
	kubeconfigVariable = "BERTH_TEST_KUBECONFIG"
	// managerNamespace is the namespace of the installation.
	managerNamespace = "berth-system"
	// timeout bounds every step: images are on the node, but the node may be busy.
	timeout = 3 * time.Minute
	poll    = 200 * time.Millisecond
)

var (
	root = filepath.Join("..", "..")
	// k8s and clientset have the rights of a cluster administrator.
	k8s       client.Client
	clientset kubernetes.Interface
	config    *rest.Config
	// httpClient is shared by k8s and clientset.
	httpClient *http.Client
)

func TestCluster(t *testing.T) {
	if os.Getenv(kubeconfigVariable) == "" {
		need.Elsewhere(t, "make test-cluster")
	}
	RegisterFailHandler(Fail)
	log.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(timeout)
	SetDefaultEventuallyPollingInterval(poll)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "In a cluster")
}

var _ = BeforeSuite(func(ctx context.Context) {
	var err error
	config, err = clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVariable))
	Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Burst = 200, 400
	httpClient, err = rest.HTTPClientFor(config)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	scheme := manager.Scheme()
	Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	k8s, err = client.New(config, client.Options{Scheme: scheme, HTTPClient: httpClient})
	Expect(err).NotTo(HaveOccurred())
	clientset, err = kubernetes.NewForConfigAndClient(config, httpClient)
	Expect(err).NotTo(HaveOccurred())

	nodes, err := clientset.CoreV1().Nodes().List(ctx, listAll)
	Expect(err).NotTo(HaveOccurred())
	Expect(nodes.Items).To(HaveLen(1), "nodes")
	Expect(installedObjects(ctx)).To(BeEmpty(), "objects of an earlier installation remain; a cluster can have only one Berth")
	DeferCleanup(removeAll)
	reloadPolicyParameters(ctx)
}, NodeTimeout(timeout))

// Explain a failure before the cleanup removes the objects.
var _ = JustAfterEach(func(ctx context.Context) {
	if CurrentSpecReport().Failed() {
		printClusterState(ctx)
	}
}, NodeTimeout(timeout))
