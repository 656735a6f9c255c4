// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// reviewTimeout bounds how long a caller waits for the API server.
const reviewTimeout = 10 * time.Second

// authenticate identifies the user of a request by its bearer token, through the API server, or by its client certificate. Results are not cached, so a revoked
// token is rejected immediately.
func (s *Server) authenticate(r *http.Request) (authenticationv1.UserInfo, *refusal) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			// Ignoring the header would grant the caller more permissions than requested.
			return authenticationv1.UserInfo{}, refuse(http.StatusForbidden, "impersonation is not supported for logs and terminals: use the credentials of the user to impersonate")
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	switch {
	case strings.EqualFold(scheme, "Bearer") && token != "":
		return s.reviewToken(ctx, token)
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		return s.certified(ctx, r.TLS.PeerCertificates)
	}
	return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "no bearer token and no client certificate: "+
		"use a kubeconfig whose user has one of them, such as the one that berth up writes")
}

// reviewToken authenticates a token through the API server: an ordinary token, or a token for this endpoint only.
func (s *Server) reviewToken(ctx context.Context, token string) (authenticationv1.UserInfo, *refusal) {
	for _, audiences := range [][]string{nil, {audience(s.opts.Namespace)}} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
		if err := s.opts.Client.Create(ctx, review); err != nil {
			s.opts.Log.Error(err, "Cannot review a token")
			return authenticationv1.UserInfo{}, refuse(http.StatusBadGateway, "cannot authenticate: the API server is not available")
		}
		if review.Status.Authenticated {
			return review.Status.User, nil
		}
	}
	return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "the API server rejects this token")
}

// authorize asks the API server whether the user may use the subresource of the object.
func (s *Server) authorize(ctx context.Context, user authenticationv1.UserInfo, verb, subresource string, t target) *refusal {
	limited, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: t.resource, Subresource: subresource,
			Verb: verb, Namespace: t.namespace, Name: t.name,
		},
	}}
	if err := s.opts.Client.Create(limited, review); err != nil {
		return s.failed(ctx, err, "Cannot review an access", t, refuse(http.StatusBadGateway, "cannot authorize: the API server is not available"))
	}
	if !review.Status.Allowed {
		return refuse(http.StatusForbidden, "user %q may not %s %s/%s.%s in namespace %q: ask an administrator for a role with that rule",
			user.Username, verb, t.resource, subresource, v1alpha1.GroupVersion.Group, t.namespace)
	}
	return nil
}
