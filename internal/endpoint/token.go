// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/oauth2"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tokenSeconds is how long a token for the endpoint is valid, in seconds. It is the minimum that the API server permits.
const tokenSeconds = 600

// serviceAccountPrefix is the prefix of the user name of a service account; NAMESPACE:NAME follows.
const serviceAccountPrefix = "system:serviceaccount:"

// audience returns the audience of tokens for the manager of an installation. Neither the API server itself nor the manager of another installation accepts
// such a token.
func audience(namespace string) string { return "berth.dev/" + namespace }

// limitToken replaces the token of a client with a short-lived token for the endpoint only. The API server can issue such a token only for a service account;
// for other users the token is not changed.
func (o FindOptions) limitToken(ctx context.Context, to *rest.Config, api client.Client) error {
	account, err := o.account(ctx, api)
	if err != nil || account == nil {
		return err
	}
	source := &tokenSource{api: api, account: account, audience: audience(o.namespace())}
	first, err := source.Token()
	if o.ServiceAccount == "" && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
		return nil // not every service account is allowed to request tokens
	}
	if err != nil {
		return err
	}
	to.BearerToken, to.BearerTokenFile, to.AuthProvider, to.ExecProvider = "", "", nil, nil
	to.Username, to.Password = "", ""
	to.Wrap(transport.TokenSourceWrapTransport(oauth2.ReuseTokenSource(first, source)))
	return nil
}

// account returns the service account whose token is sent to the endpoint: the configured one, or the user of the kubeconfig. It returns nil if that user is
// not a service account.
func (o FindOptions) account(ctx context.Context, api client.Client) (*corev1.ServiceAccount, error) {
	name, separator := o.ServiceAccount, "/"
	if name == "" {
		review := &authenticationv1.SelfSubjectReview{}
		if err := api.Create(ctx, review); err != nil {
			return nil, nil //nolint:nilerr // without this review, the client sends the token of the kubeconfig
		}
		is := false
		if name, is = strings.CutPrefix(review.Status.UserInfo.Username, serviceAccountPrefix); !is {
			return nil, nil
		}
		separator = ":"
	}
	namespace, name, ok := strings.Cut(name, separator)
	if !ok || namespace == "" || name == "" {
		return nil, fmt.Errorf("service account %q: want NAMESPACE/NAME", o.ServiceAccount)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, nil
}

// tokenSource requests tokens of a service account for one audience.
type tokenSource struct {
	api      client.Client
	account  *corev1.ServiceAccount
	audience string
}

// Token implements oauth2.TokenSource.
func (s *tokenSource) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
	defer cancel()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{s.audience}, ExpirationSeconds: ptr.To[int64](tokenSeconds),
	}}
	if err := s.api.SubResource("token").Create(ctx, s.account, request); err != nil {
		return nil, fmt.Errorf("request a token of service account %s/%s for the manager: %w", s.account.Namespace, s.account.Name, err)
	}
	// Half of the lifetime is left as a margin for clock differences with the API server.
	return &oauth2.Token{AccessToken: request.Status.Token, TokenType: "Bearer", Expiry: time.Now().Add(tokenSeconds * time.Second / 2)}, nil
}
