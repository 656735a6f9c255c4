// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rbac embeds the roles of Berth's users, so that a binary can install them.
package rbac

import _ "embed"

// UserRoles contains the ClusterRoles for viewing, editing and administering the objects of Berth, which are aggregated to the roles view, edit and admin.
//
//go:embed user_roles.yaml
var UserRoles []byte

// EndpointFinder lets every authenticated user read where logs and terminals are served. Its namespace must exist.
//
//go:embed endpoint_finder_role.yaml
var EndpointFinder []byte
