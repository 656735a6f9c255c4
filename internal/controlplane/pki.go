// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/statedir"
)

const (
	validity = 10 * 365 * 24 * time.Hour
	// renewBefore is the remaining validity below which a certificate authority is replaced.
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
	ca         *x509.Certificate
	caKey      *ecdsa.PrivateKey
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
	if err := id.writeTokens(dir); err != nil {
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

// writeTokens writes the token file of the API server. Its only user is the administrator, for the kubeconfig.
func (id *identity) writeTokens(dir layout) error {
	lines := id.adminToken + ",berth-admin,berth-admin,system:masters\n"
	if have, err := os.ReadFile(dir.pki(fileTokens)); err == nil && string(have) == lines {
		return nil
	}
	return statedir.Write(dir.pki(fileTokens), []byte(lines))
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
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("create a token: %w", err)
	}
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
	if certErr == nil && keyErr == nil {
		cert, key, err := parsePair(certPEM, keyPEM)
		if err == nil && time.Until(cert.NotAfter) > renewBefore {
			id.caPEM, id.ca, id.caKey = certPEM, cert, key
			return nil
		}
	}
	return id.makeCA(dir)
}

func (id *identity) makeCA(dir layout) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create the certificate authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "berth"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certPEM, cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	// If this process is killed between the two writes, the next start finds no matching pair and replaces both files.
	if err := writeKey(dir.pki(fileCAKey), key); err != nil {
		return err
	}
	if err := statedir.Write(dir.pki(fileCA), certPEM); err != nil {
		return err
	}
	id.caPEM, id.ca, id.caKey = certPEM, cert, key
	return nil
}

// writeServing creates the certificate of the API server. Start replaces it unless it adopts a child. It expires no later than
// the certificate authority.
func (id *identity) writeServing(dir layout) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: program},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost"},
	}
	certPEM, _, err := sign(template, id.ca, &key.PublicKey, id.caKey)
	if err != nil {
		return err
	}
	if err := writeKey(dir.pki(fileServerKey), key); err != nil {
		return err
	}
	return statedir.Write(dir.pki(fileServerCert), certPEM)
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) ([]byte, *x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, fmt.Errorf("create a certificate: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(validity)
	if parent != template && parent.NotAfter.Before(template.NotAfter) {
		template.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, nil, fmt.Errorf("create a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("create a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert, nil
}

func parsePair(certPEM, keyPEM []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, errors.New("no PEM data")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("parse a certificate: %w", err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("parse a key: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("the certificate does not match the private key")
	}
	return cert, key, nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	var out bytes.Buffer
	if err := pem.Encode(&out, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der}); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return statedir.Write(path, out.Bytes())
}
