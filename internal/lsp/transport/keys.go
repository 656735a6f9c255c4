// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

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
		Subject: pkix.Name{CommonName: Protocol}, DNSNames: []string{Protocol},
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
		Key:          private,
		ClientToken:  []byte(rand.Text()),
		ManagerToken: []byte(rand.Text()),
	}, nil
}
