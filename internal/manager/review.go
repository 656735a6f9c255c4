// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// reviewTimeout bounds how long a scrape waits for the API server.
const reviewTimeout = 10 * time.Second

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// ReviewMetrics is a metricsserver.Options.FilterProvider. It serves callers that the API server authenticates and authorizes for the path. The filter of
// controller-runtime does the same, but depends on k8s.io/apiserver: see docs/decisions/0021.
func ReviewMetrics(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	api, err := client.New(unthrottled(config), client.Options{HTTPClient: httpClient, Scheme: Scheme()})
	if err != nil {
		return nil, fmt.Errorf("protect the metrics: %w", err)
	}
	return func(log logr.Logger, next http.Handler) (http.Handler, error) {
		reviewer := &reviewer{api: api, log: log}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if status, text := reviewer.review(r); status != http.StatusOK {
				if status == http.StatusUnauthorized {
					w.Header().Set("WWW-Authenticate", "Bearer")
				}
				http.Error(w, text, status)
				return
			}
			next.ServeHTTP(w, r)
		}), nil
	}, nil
}

// reviewer authorizes requests through the API server. Results are not cached: scrapes are rare, and a revoked token is rejected immediately.
type reviewer struct {
	api client.Client
	log logr.Logger
}

// review returns 200, or the status and the text of the rejection.
func (v *reviewer) review(r *http.Request) (status int, text string) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, "metrics need a bearer token"
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := v.api.Create(ctx, who); err != nil {
		v.log.Error(err, "Cannot review the token of a metrics request")
		return http.StatusBadGateway, "cannot authenticate: the API server is not available"
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, "the API server rejects this token"
	}
	user := who.Status.User
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra(user.Extra),
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)},
	}}
	if err := v.api.Create(ctx, may); err != nil {
		v.log.Error(err, "Cannot review the access of a metrics request")
		return http.StatusBadGateway, "cannot authorize: the API server is not available"
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, fmt.Sprintf("user %q may not %s %s: bind the user to the ClusterRole berth-metrics-reader",
			user.Username, strings.ToLower(r.Method), r.URL.Path)
	}
	return http.StatusOK, ""
}

func extra(of map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	all := make(map[string]authorizationv1.ExtraValue, len(of))
	for key, value := range of {
		all[key] = authorizationv1.ExtraValue(value)
	}
	return all
}
