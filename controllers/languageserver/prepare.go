// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// Prepare implements process.Kind: it sets the configuration of the multiplexer and the owner of the object.
func (k *Kind) Prepare(ctx context.Context, object process.Object, current *facts.Incarnation, start *process.StartSpec) error {
	server := languageServer(object)
	k.noteAsked(server) // here, because the decision may remove the stop request from the status
	k.keep(server, true)
	start.Probed, start.RecordFirst = true, true // status.recentRestarts is derived from the status that records a start
	if start.Blocked == nil {
		blocked, err := k.owners.Set(ctx, server, server.Spec.InstanceRef)
		if err != nil {
			return err
		}
		start.Blocked = blocked
	}
	if start.Process.Dir == "" && len(server.Spec.Workspace.Folders) > 0 {
		start.Process.Dir = server.Spec.Workspace.Folders[0]
	}
	wanted := server.Spec.Workspace.Folders
	text, err := config(&server.Spec, wanted)
	started := text
	if folders := k.foldersOf(server, current); err == nil && !slices.Equal(folders, wanted) {
		started, err = config(&server.Spec, folders)
	}
	if err != nil {
		return err
	}
	start.Fingerprint = []string{"lsp=" + string(started)}
	if inPod(server) {
		return k.preparePod(ctx, server, text, start)
	}
	start.Process.Config = text
	return nil
}

// config returns the part of the spec beyond the process, in the format of the multiplexer. The same spec always results in the same bytes.
func config(spec *v1alpha1.LanguageServerSpec, folders []string) ([]byte, error) {
	options, err := canonical(spec.InitializationOptions)
	if err != nil {
		return nil, fmt.Errorf("read spec.initializationOptions: %w", err)
	}
	settings, err := canonical(spec.Settings)
	if err != nil {
		return nil, fmt.Errorf("read spec.settings: %w", err)
	}
	health, err := health(&spec.Health)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(lsp.Config{
		Language:              spec.Language,
		Folders:               folders,
		InitializationOptions: options,
		Settings:              settings,
		Limits:                limits(&spec.Limits),
		Hold:                  hold(&spec.Hold),
		Health:                health,
		StartupTimeout:        seconds(spec.StartupTimeoutSeconds),
		WhileIndexing:         string(spec.WhileIndexing),
		Replay:                spec.ReplayMethods,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of the multiplexer: %w", err)
	}
	return text, nil
}

func limits(spec *v1alpha1.LanguageServerLimits) lsp.Limits {
	return lsp.Limits{
		HeaderBytes:        int(size(spec.MaxHeaderSize)),
		MessageBytes:       int(size(spec.MaxMessageSize)),
		ClientMessageBytes: int(size(spec.MaxClientMessageSize)),
		Clients:            number(spec.MaxClients),
		OpenDocuments:      number(spec.MaxOpenDocuments),
		DocumentBytes:      int(size(spec.MaxDocumentsSize)),
		InFlight:           number(spec.MaxInFlight),
		QueueBytes:         int(size(spec.MaxQueueSize)),
		RequestTimeout:     seconds(spec.RequestTimeoutSeconds),
		MemoryBytes:        size(spec.MaxMemory),
	}
}

// hold converts the hold policy of the spec. A timeout of 0 becomes -1, because 0 selects the default of the multiplexer.
func hold(spec *v1alpha1.HoldPolicy) lsp.Hold {
	timeout := seconds(spec.TimeoutSeconds)
	if spec.TimeoutSeconds != nil && timeout == 0 {
		timeout = -1
	}
	return lsp.Hold{Timeout: timeout, Requests: number(spec.MaxRequests), Bytes: int(size(spec.MaxSize))}
}

func health(spec *v1alpha1.LanguageServerHealth) (lsp.Health, error) {
	health := lsp.Health{PingAfter: seconds(spec.PingAfterSeconds), HangTimeout: seconds(spec.HangTimeoutSeconds)}
	if spec.Canary == nil {
		return health, nil
	}
	params, err := canonical(spec.Canary.Params)
	if err != nil {
		return health, fmt.Errorf("read spec.health.canary.params: %w", err)
	}
	health.Canary = lsp.Canary{Method: spec.Canary.Method, Params: params, Period: seconds(spec.Canary.PeriodSeconds)}
	return health, nil
}

// canonical returns JSON without white space and with sorted names, so that equal content results in equal text. It keeps numbers as they are written.
func canonical(extension *apiruntime.RawExtension) (json.RawMessage, error) {
	if extension == nil || len(extension.Raw) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(extension.Raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// idleTimeout returns how long a server may have no client before it is put to sleep.
func idleTimeout(server *v1alpha1.LanguageServer) time.Duration {
	return time.Duration(ptr.Deref(server.Spec.IdleTimeoutSeconds, defaultIdleTimeout)) * time.Second
}

// defaultIdleTimeout is the default of the API in seconds, for objects that were stored without a value.
const defaultIdleTimeout = 1800

func seconds(n *int32) time.Duration { return time.Duration(ptr.Deref(n, 0)) * time.Second }

func number(n *int32) int { return int(ptr.Deref(n, 0)) }

// size returns a quantity in bytes, rounded up, or 0 if it is unset.
func size(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}
