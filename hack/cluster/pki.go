// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// writePKI creates a certificate authority, one certificate for all servers and clients on the node, and the key of service accounts.
func (c *cluster) writePKI() error {
	authority, authorityKey := certificate("berth-cluster"), newKey()
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	node, nodeKey := certificate("kube-apiserver"), newKey()
	node.Subject.Organization = []string{"system:masters"}
	node.KeyUsage, node.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	node.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(nodeIP), net.ParseIP(serviceIP)}
	node.DNSNames = []string{"localhost", nodeName, "kubernetes.default.svc"}
	for _, signed := range []struct {
		name     string
		template *x509.Certificate
		key      *ecdsa.PrivateKey
	}{{"ca", authority, authorityKey}, {"node", node, nodeKey}} {
		der, err := x509.CreateCertificate(rand.Reader, signed.template, authority, &signed.key.PublicKey, authorityKey)
		if err != nil {
			return fmt.Errorf("create certificate: %w", err)
		}
		if err := writeFile(c.path("pki", signed.name+".crt"), encode("CERTIFICATE", der)); err != nil {
			return err
		}
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"node": nodeKey, "service-accounts": newKey()} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return fmt.Errorf("encode key: %w", err)
		}
		if err := writeFile(c.path("pki", name+".key"), encode("EC PRIVATE KEY", der)); err != nil {
			return err
		}
	}
	return nil
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// newKey returns a new key. It panics if the system has no randomness.
func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func certificate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0)}
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
