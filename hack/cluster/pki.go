// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"net"

	"github.com/berth-dev/berth/internal/certs"
)

// writePKI creates a certificate authority, one certificate for all servers and clients on the node, and the key of service accounts.
func (c *cluster) writePKI() error {
	authority, err := certs.Issue(x509.Certificate{Subject: pkix.Name{CommonName: "berth-cluster"}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}, nil)
	if err != nil {
		return err
	}
	node, err := certs.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}}, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(nodeIP), net.ParseIP(serviceIP)},
		DNSNames:    []string{"localhost", nodeName, "kubernetes.default.svc"},
	}, authority)
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	for name, pair := range map[string]*tls.Certificate{"ca": authority, "node": node} {
		if err := writeFile(c.path("pki", name+".crt"), string(certs.CertificatePEM(pair))); err != nil {
			return err
		}
	}
	for name, key := range map[string]crypto.PrivateKey{"node": node.PrivateKey, "service-accounts": accounts} {
		text, err := certs.KeyPEM(key)
		if err != nil {
			return err
		}
		if err := writeFile(c.path("pki", name+".key"), string(text)); err != nil {
			return err
		}
	}
	return nil
}

// newTokens creates a token for each user.
func newTokens() map[string]string {
	tokens := map[string]string{}
	for user := range users {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // it never returns an error
		tokens[user] = hex.EncodeToString(secret)
	}
	return tokens
}
