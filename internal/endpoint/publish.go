// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/certs"
)

const (
	keyURL = "url"
	keyCA  = "ca.crt"

	// publishRetry is how long to wait before the address is published again after an error. It doubles with each error, up to publishRetryMost.
	publishRetry, publishRetryMost = time.Second, 10 * time.Second
)

// publish writes the address to the ConfigMap that clients read, and retries until it succeeds or the context is done.
func (s *Server) publish(ctx context.Context) {
	failing := false
	retry := wait.Backoff{Duration: publishRetry, Factor: 2, Steps: math.MaxInt, Cap: publishRetryMost}
	_ = retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := s.publishOnce(ctx)
		switch {
		case err == nil:
			s.opts.Log.Info("Serving logs and terminals", "url", s.url())
		case ctx.Err() == nil && !failing:
			failing = true
			s.opts.Log.Error(err, "Cannot publish the address of the endpoint; berth logs and berth attach cannot find it until this succeeds; retrying")
		}
		return err == nil, nil
	})
}

func (s *Server) publishOnce(ctx context.Context) error {
	wanted := map[string]string{keyURL: s.url()}
	if len(s.ca) > 0 {
		wanted[keyCA] = string(s.ca)
	}
	labels := map[string]string{"app.kubernetes.io/name": "berth", "app.kubernetes.io/managed-by": "berth"}
	published := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: s.opts.Namespace, Name: ConfigMap}
	err := s.opts.Reader.Get(ctx, key, published)
	if err == nil {
		published.Labels, published.Data = labels, wanted
		return s.opts.Client.Update(ctx, published)
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.opts.Namespace}}
	if err := s.opts.Reader.Get(ctx, client.ObjectKeyFromObject(namespace), namespace); apierrors.IsNotFound(err) {
		if err := s.opts.Client.Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create namespace %s: %w", s.opts.Namespace, err)
		}
	}
	published = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.opts.Namespace, Name: ConfigMap, Labels: labels}, Data: wanted}
	return s.opts.Client.Create(ctx, published)
}

// certificate loads the configured certificate, or creates one for loopback whose key never leaves this process. It returns the TLS configuration and the
// certificate authority that clients trust.
func certificate(opts Options) (*tls.Config, []byte, error) {
	// The handshake does not verify client certificates, because authenticate does so with the certificate authority that the API server publishes.
	config := &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}
	if opts.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(opts.CertFile, opts.KeyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("load the certificate of the endpoint: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
		last := pair.Certificate[len(pair.Certificate)-1] // the file contains the chain; clients trust its last certificate
		return config, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: last}), nil
	}
	pair, err := certs.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: "berth-endpoint"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	config.Certificates = []tls.Certificate{*pair}
	return config, certs.CertificatePEM(pair), nil
}
