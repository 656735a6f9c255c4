// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/certs"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// renewBefore is the remaining validity below which a certificate authority is replaced. It is also replaced if it is not valid yet: earlier versions could
	// create such an authority while the clock was ahead.
	renewBefore = 30 * 24 * time.Hour

	fileCA             = "ca.crt"
	fileCAKey          = "ca.key"
	fileServerCert     = "apiserver.crt"
	fileServerKey      = "apiserver.key"
	fileServiceAccount = "service-account.key"
	fileTokens         = "tokens.csv"
	fileAdminToken     = "admin.token"
)

// identity holds the parts of a control plane that persist across restarts: its certificate authority, the key of its service accounts and the token of its
// administrator.
type identity struct {
	caPEM      []byte
	ca         *tls.Certificate
	adminToken string
}

// loadIdentity reads the identity from the state directory and creates the missing parts.
func loadIdentity(dir layout) (*identity, error) {
	id := &identity{}
	if err := id.loadCA(dir); err != nil {
		return nil, err
	}
	var err error
	if id.adminToken, err = loadToken(dir.pki(fileAdminToken)); err != nil {
		return nil, err
	}
	// The only user in the token file of the API server is the administrator, for the kubeconfig.
	if err := statedir.Write(dir.pki(fileTokens), []byte(id.adminToken+",berth-admin,berth-admin,system:masters\n")); err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir.pki(fileServiceAccount)); errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create the service account key: %w", err)
		}
		return id, writeKey(dir.pki(fileServiceAccount), key)
	} else if err != nil {
		return nil, fmt.Errorf("read the service account key: %w", err)
	}
	return id, nil
}

func loadToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read a token: %w", err)
	}
	if token := strings.TrimSpace(string(data)); len(token) >= 32 {
		return token, nil
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never returns an error
	token := hex.EncodeToString(random)
	return token, statedir.Write(path, []byte(token+"\n"))
}

func (id *identity) loadCA(dir layout) error {
	certPEM, certErr := os.ReadFile(dir.pki(fileCA))
	keyPEM, keyErr := os.ReadFile(dir.pki(fileCAKey))
	for _, err := range []error{certErr, keyErr} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the certificate authority: %w", err)
		}
	}
	if pair, err := tls.X509KeyPair(certPEM, keyPEM); err == nil && time.Until(pair.Leaf.NotAfter) > renewBefore && time.Until(pair.Leaf.NotBefore) <= 0 {
		id.caPEM, id.ca = certPEM, &pair
		return nil
	}
	return id.makeCA(dir)
}

func (id *identity) makeCA(dir layout) (err error) {
	id.ca, err = certs.Issue(x509.Certificate{
		Subject:               pkix.Name{CommonName: "berth"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil)
	if err != nil {
		return err
	}
	id.caPEM = certs.CertificatePEM(id.ca)
	return writePair(dir.pki(fileCA), dir.pki(fileCAKey), id.ca)
}

// writeServing creates the certificate of the API server. Start replaces it unless it adopts a child. It expires no later than
// the certificate authority.
func (id *identity) writeServing(dir layout) error {
	pair, err := certs.Issue(x509.Certificate{
		Subject:     pkix.Name{CommonName: program},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost"},
	}, id.ca)
	if err != nil {
		return err
	}
	return writePair(dir.pki(fileServerCert), dir.pki(fileServerKey), pair)
}

// writePair writes the key first. If this process is killed between the two writes, the next start finds no matching pair and replaces both files.
func writePair(cert, key string, pair *tls.Certificate) error {
	if err := writeKey(key, pair.PrivateKey); err != nil {
		return err
	}
	return statedir.Write(cert, certs.CertificatePEM(pair))
}

func writeKey(path string, key crypto.PrivateKey) error {
	text, err := certs.KeyPEM(key)
	if err != nil {
		return err
	}
	return statedir.Write(path, text)
}
