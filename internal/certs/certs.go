// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certs issues certificates with ECDSA keys.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

const validity = 10 * 365 * 24 * time.Hour

// introduced is earlier than every start of this program. A clock that shows an earlier time is wrong.
var introduced = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// period returns when a new certificate is valid. It depends on the clock as little as possible, because the clock may be corrected after the first start,
// for example on a machine without a battery-backed clock: the certificate must be valid after that, too.
func period(now time.Time) (from, until time.Time) {
	if now.Before(introduced) {
		now = introduced
	}
	return time.Unix(0, 0).UTC(), now.Add(validity)
}

// Issue generates a key and a certificate for it. The issuer signs the certificate; without an issuer, the certificate is self-signed. Unless the template sets
// NotAfter, the certificate is valid until ten years from now, but no longer than the issuer, and at any earlier time.
func Issue(template x509.Certificate, issuer *tls.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create a key: %w", err)
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = period(time.Now())
	}
	signer := &tls.Certificate{Leaf: &template, PrivateKey: key}
	if issuer != nil {
		signer = issuer
	}
	if signer.Leaf.NotAfter.Before(template.NotAfter) {
		template.NotAfter = signer.Leaf.NotAfter
	}
	// CreateCertificate chooses the serial number.
	der, err := x509.CreateCertificate(rand.Reader, &template, signer.Leaf, key.Public(), signer.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// CertificatePEM returns the certificate without its chain.
func CertificatePEM(pair *tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
}

// KeyPEM returns a private key, such as the one of a certificate from Issue. The API server reads the public key of service accounts only from this format.
func KeyPEM(key crypto.PrivateKey) ([]byte, error) {
	private, is := key.(*ecdsa.PrivateKey)
	if !is {
		return nil, fmt.Errorf("encode a key: %T is not supported", key)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
