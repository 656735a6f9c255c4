// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport implements connections to a multiplexer over a network: TLS with one certificate that is known in advance, and an HTTP/1.1 upgrade request
// with a token. After the response to that request, the connection is the stream of a client or the manager. An API server can proxy such requests, so clients
// need no network access to the cluster.
package transport

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"time"

	"github.com/berth-dev/berth/internal/certs"
)

// NewKeys returns new contents for the Secret of a multiplexer. The certificate does not expire: it is valid as long as it is in the Secret.
func NewKeys() (map[string][]byte, error) {
	pair, err := certs.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: protocol}, DNSNames: []string{protocol},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, nil)
	if err != nil {
		return nil, err
	}
	private, err := certs.KeyPEM(pair.PrivateKey)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		Certificate:  certs.CertificatePEM(pair),
		privateKey:   private,
		ClientToken:  []byte(rand.Text()),
		ManagerToken: []byte(rand.Text()),
	}, nil
}

// Keys of a multiplexer's Secret, and names of the files in which the multiplexer reads them.
const (
	// Certificate and privateKey are PEM. The certificate is self-signed; clients compare it with the one in the Secret.
	Certificate = "tls.crt"
	privateKey  = "tls.key"
	// ClientToken is required for ClientPath, ManagerToken for managerPath.
	ClientToken  = "token"
	ManagerToken = "manager-token"
)

// Port, paths and header of the connection.
const (
	// Port is the port on which a multiplexer listens in its Pod.
	Port = 7077
	// ClientPath is the path of the language server, managerPath of the multiplexer's control connection.
	ClientPath  = "/lsp"
	managerPath = "/manager"
	// tokenHeader contains the token. It is not Authorization, because an API server does not forward that header.
	tokenHeader = "Berth-Token"
	// protocol is the value of the Upgrade header.
	protocol = "berth-lsp"
)
