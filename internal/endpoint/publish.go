// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"

	"github.com/berth-dev/berth/internal/certs"
	"github.com/berth-dev/berth/internal/hosts"
)

// Address returns where the server serves. The manager publishes it in the Lease of its host, which clients read.
func (s *Server) Address() hosts.Endpoint { return hosts.Endpoint{URL: s.url(), Authority: s.ca} }

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
