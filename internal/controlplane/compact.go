// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// etcdQuota limits the database file of etcd, in bytes. etcd rejects writes beyond this limit. It is a variable so that a test can lower the limit.
var etcdQuota int64 = 512 << 20

// compactTimeout bounds one compaction, which copies the database.
const compactTimeout = 30 * time.Second

// compactIfLarge shrinks the database file of etcd once it reaches half of the quota. etcd itself drops old revisions every two minutes, which leaves free
// pages in the file and does not suffice for a burst of writes. compactIfLarge also clears the alarm that makes etcd reject writes after the quota was reached.
func (c *ControlPlane) compactIfLarge(ctx context.Context) error {
	info, err := os.Stat(filepath.Join(c.dir.etcd(), "member", "snap", "db"))
	if err != nil || info.Size() < etcdQuota/2 {
		return nil // etcd may not have created the file yet
	}
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	etcd, err := c.newEtcdClient()
	if err != nil {
		return err
	}
	defer etcd.http.CloseIdleConnections()
	var status struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	if err := etcd.call(ctx, "maintenance/status", struct{}{}, &status); err != nil {
		return err
	}
	// Continue after an error, because the call also fails if the current revision was already compacted.
	compactErr := etcd.call(ctx, "kv/compaction", map[string]any{"revision": status.Header.Revision, "physical": true}, nil)
	if err := etcd.call(ctx, "maintenance/defragment", struct{}{}, nil); err != nil {
		return errors.Join(compactErr, err)
	}
	var raised struct {
		Alarms []struct {
			MemberID string `json:"memberID"`
			Alarm    string `json:"alarm"`
		} `json:"alarms"`
	}
	if err := etcd.call(ctx, "maintenance/alarm", map[string]any{"action": "GET"}, &raised); err != nil {
		return err
	}
	for _, alarm := range raised.Alarms {
		if alarm.Alarm != "NOSPACE" {
			continue
		}
		request := map[string]any{"action": "DEACTIVATE", "alarm": alarm.Alarm, "memberID": alarm.MemberID}
		if err := etcd.call(ctx, "maintenance/alarm", request, nil); err != nil {
			return err
		}
	}
	return nil
}

// compactBeforeReady compacts the database as soon as etcd responds. It runs before the wait for the API server, because an API server whose etcd rejects
// writes never becomes ready.
func (c *ControlPlane) compactBeforeReady(ctx context.Context, etcd *child) {
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	for {
		err := c.compactIfLarge(ctx)
		if err == nil || etcd.ended() {
			return
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			c.opts.Progress(err.Error())
			return
		}
	}
}

// etcdClient calls the JSON API of etcd.
type etcdClient struct {
	http *http.Client
	url  string
}

func (c *ControlPlane) newEtcdClient() (*etcdClient, error) {
	certificate, err := tls.LoadX509KeyPair(c.dir.pki(fileEtcdClientCert), c.dir.pki(fileEtcdClientKey))
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	ca, err := os.ReadFile(c.dir.pki(fileCA))
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots, MinVersion: tls.VersionTLS12}}
	return &etcdClient{&http.Client{Transport: transport}, fmt.Sprintf("https://127.0.0.1:%d/v3/", c.used.EtcdClient)}, nil
}

func (e *etcdClient) call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("call etcd (%s): %w", method, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+method, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call etcd (%s): %w", method, err)
	}
	response, err := e.http.Do(request)
	if err != nil {
		return fmt.Errorf("call etcd (%s): %w", method, err)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("call etcd (%s): %w", method, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("call etcd (%s): %s: %.200s", method, response.Status, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("call etcd (%s): %w", method, err)
	}
	return nil
}
