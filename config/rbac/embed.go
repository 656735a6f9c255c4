// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rbac carries the roles of Berth's users, so that a binary can install them.
package rbac

import _ "embed"

// UserRoles holds who may look at, edit and take over the objects of Berth, added to the roles view, edit and admin.
//
//go:embed user_roles.yaml
var UserRoles []byte

// EndpointFinder lets whoever is known look up where logs and terminals are served. Its namespace has to be there.
//
//go:embed endpoint_finder_role.yaml
var EndpointFinder []byte
