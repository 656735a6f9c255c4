// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/x509"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// authenticationNamespace and authenticationConfigMap name the ConfigMap in which an API server publishes the certificate authority of its clients.
	authenticationNamespace = "kube-system"
	authenticationConfigMap = "extension-apiserver-authentication"
	keyClientCA             = "client-ca-file"
	// authenticatedGroup is the group of all users whom the API server has authenticated.
	authenticatedGroup = "system:authenticated"
)

// certified identifies the user of a client certificate in the same way as the API server: the certificate must be issued by the certificate authority that the
// API server publishes for this purpose, the common name is the user, and the organizations are the groups. The TLS handshake has proved that the client has
// the key.
func (s *Server) certified(ctx context.Context, chain []*x509.Certificate) (authenticationv1.UserInfo, *refusal) {
	published := &corev1.ConfigMap{}
	err := s.opts.Reader.Get(ctx, client.ObjectKey{Namespace: authenticationNamespace, Name: authenticationConfigMap}, published)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM([]byte(published.Data[keyClientCA])) {
		if err != nil {
			s.opts.Log.Error(err, "Cannot read the certificate authority of clients")
		}
		return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "the manager cannot check client certificates, because it cannot read %s from ConfigMap %s/%s: "+
			"use a token, for example with --service-account", keyClientCA, authenticationNamespace, authenticationConfigMap)
	}
	between := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		between.AddCert(certificate)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "the client certificate is not valid for this API server: %v", err)
	}
	subject := chain[0].Subject
	if subject.CommonName == "" {
		return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "the client certificate has no common name, so it names no user")
	}
	return authenticationv1.UserInfo{Username: subject.CommonName, Groups: append(subject.Organization, authenticatedGroup)}, nil
}
