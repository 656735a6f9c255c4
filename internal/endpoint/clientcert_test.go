// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// authority is a certificate authority.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(g *WithT) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, err := x509.ParseCertificate(der)
	g.Expect(err).NotTo(HaveOccurred())
	return &authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a kubeconfig's TLS settings with a certificate of the authority.
func (a *authority) issue(g *WithT, change func(*x509.Certificate)) rest.TLSClientConfig {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "ann", Organization: []string{"people"}}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	g.Expect(err).NotTo(HaveOccurred())
	encoded, err := x509.MarshalECPrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	return rest.TLSClientConfig{
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}),
	}
}

func TestServer_AcceptsClientCertificatesOfTheAPIServer(t *testing.T) {
	g := NewWithT(t)
	trusted, other := newAuthority(g), newAuthority(g)
	f := newFixture(t)
	f.stub.logs["uid-web"] = newLog("hello\n")
	var asked []authorizationv1.SubjectAccessReviewSpec
	f.review = func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		asked = append(asked, spec)
		return spec.User == "ann" && slices.Contains(spec.Groups, "people")
	}
	unchanged := func(*x509.Certificate) {}
	read := func(config rest.TLSClientConfig) error {
		var found *Client
		g.Eventually(func() (err error) {
			found, err = Find(t.Context(), &rest.Config{TLSClientConfig: config}, f.api, FindOptions{})
			return err
		}, timeout).Should(Succeed())
		defer found.Close()
		stream, err := found.Log(t.Context(), web, LogOptions{Tail: -1})
		if err == nil {
			g.Expect(stream.Close()).To(Succeed())
		}
		return err
	}
	g.Expect(read(trusted.issue(g, unchanged))).To(MatchError(ContainSubstring("cannot read client-ca-file")))

	g.Expect(f.api.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"client-ca-file": string(trusted.pem)},
	})).To(Succeed())
	g.Expect(read(trusted.issue(g, unchanged))).To(Succeed())
	g.Expect(asked[len(asked)-1].Groups).To(ConsistOf("people", "system:authenticated"))
	g.Expect(read(trusted.issue(g, func(c *x509.Certificate) { c.Subject.CommonName = "bob" }))).To(MatchError(ContainSubstring(`user "bob" may not get devservers/log`)))

	for name, config := range map[string]rest.TLSClientConfig{
		"other authority": other.issue(g, unchanged),
		"expired":         trusted.issue(g, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
		"of a server":     trusted.issue(g, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"without a name":  trusted.issue(g, func(c *x509.Certificate) { c.Subject = pkix.Name{} }),
		"no certificate":  {},
	} {
		asked = nil
		g.Expect(read(config)).NotTo(Succeed(), name)
		g.Expect(asked).To(BeEmpty(), name)
	}
}
