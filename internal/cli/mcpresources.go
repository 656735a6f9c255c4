// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berth-dev/berth/internal/endpoint"
)

// resourcePrefix is the beginning of the URIs of objects, which are berth://NAMESPACE/KIND/NAME.
const resourcePrefix = "berth://"

// addResources adds the objects and their output as resources.
func (t *toolContext) addResources(server *mcp.Server) {
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "object", URITemplate: resourcePrefix + "{namespace}/{kind}/{name}", MIMEType: "application/json", Description: "An object with its spec and status.",
	}, t.readObject)
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "log", URITemplate: resourcePrefix + "{namespace}/{kind}/{name}/log", MIMEType: "text/plain", Description: "The last 1000 lines of the output of an object.",
	}, t.readLog)
}

// resourceName returns the KIND/NAME of a URI.
func (t *toolContext) resourceName(uri string) (string, error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(uri, "/log"), resourcePrefix), "/")
	if !ok || namespace != t.to.namespace {
		return "", fmt.Errorf("%s: this server serves only namespace %q: %w", uri, t.to.namespace, mcp.ResourceNotFoundError(uri))
	}
	return name, nil
}

func (t *toolContext) readObject(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := request.Params.URI
	name, err := t.resourceName(uri)
	if err != nil {
		return nil, err
	}
	_, object, err := t.find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, mcp.ResourceNotFoundError(uri))
	}
	object.SetManagedFields(nil)
	text, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "application/json", Text: string(text)}}}, nil
}

var everyLine = regexp.MustCompile("")

func (t *toolContext) readLog(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := request.Params.URI
	name, err := t.resourceName(uri)
	if err != nil {
		return nil, err
	}
	ref, object, err := t.find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, mcp.ResourceNotFoundError(uri))
	}
	text, _, err := t.output(ctx, ref, object, "", endpoint.LogOptions{Tail: maxLogLines})
	if err != nil {
		return nil, explain(err)
	}
	lines, _ := selectLines(text, everyLine, maxLogLines)
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: strings.Join(lines, "\n")}}}, nil
}
