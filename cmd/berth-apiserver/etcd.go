// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// socket is the path of the Unix socket of etcd, relative to the state directory, which only its owner can enter. etcd requires the form HOST:PORT.
	socket   = "etcd.sock:0"
	endpoint = "unix://" + socket
	// compactTimeout bounds one compaction and defragmentation, which copies the database.
	compactTimeout = 30 * time.Second
	// compactPoll is how often the size of the database is checked.
	compactPoll = 5 * time.Second
)

// database is a running etcd.
type database struct {
	*embed.Etcd
	client *clientv3.Client
	file   string
	quota  int64
	// compacted is the size of the file after the last compaction, in bytes.
	compacted int64
}

// startEtcd starts etcd and waits until it responds or the context is done.
func startEtcd(ctx context.Context, o options) (*database, error) {
	// A killed process leaves its socket behind. berth up holds the lock of the state directory, so no other etcd uses the socket.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of the previous etcd: %w", err)
	}
	etcd, err := embed.StartEtcd(etcdConfig(o))
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	d := &database{Etcd: etcd, file: filepath.Join(o.dir, "etcd", "member", "snap", "db"), quota: o.quota}
	if err := d.prepare(ctx); err != nil {
		etcd.Close()
		return nil, err
	}
	return d, nil
}

// prepare waits until etcd responds, and then compacts a large database, because an API server whose etcd rejects writes does not become ready.
func (d *database) prepare(ctx context.Context) error {
	select {
	case <-d.Server.ReadyNotify():
	case <-ctx.Done():
		return ctx.Err()
	case err := <-d.Err():
		return errors.Join(errors.New("start etcd: it stopped"), err)
	case <-d.Server.StopNotify():
		return errors.New("start etcd: it stopped")
	}
	var err error
	if d.client, err = clientv3.New(clientv3.Config{Endpoints: []string{endpoint}}); err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	if err := d.compactIfLarge(ctx); err != nil { // the API server may become ready nevertheless
		fmt.Fprintln(os.Stderr, "berth-apiserver:", err)
	}
	return nil
}

// Close stops etcd.
func (d *database) Close() {
	_ = d.client.Close() // all requests are done
	d.Etcd.Close()
}

func etcdConfig(o options) *embed.Config {
	config := embed.NewConfig()
	config.Name = "berth"
	config.Dir = filepath.Join(o.dir, "etcd")
	listen := url.URL{Scheme: "unix", Host: socket}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	// etcd has no other members, so it does not listen for them. It requires an advertised address, but no program connects to it.
	config.ListenPeerUrls = nil
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	config.AdvertisePeerUrls = []url.URL{peer}
	config.InitialCluster = config.Name + "=" + peer.String()
	// etcd removes old versions of objects sooner than the API server, which requests a compaction every five minutes by default.
	config.AutoCompactionMode = embed.CompactorModePeriodic
	config.AutoCompactionRetention = "2m"
	config.QuotaBackendBytes = o.quota
	// By default etcd keeps 5000 changes in memory and 10000 in the write-ahead log for other members, which this etcd does not have. With large objects these
	// changes take gigabytes.
	config.SnapshotCount = 250
	config.SnapshotCatchUpEntries = 50
	config.LogLevel = "warn"
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	config.EnableGRPCGateway = false
	return config
}

// keep compacts the database whenever it is large, until the context is done. It returns an error if etcd stops before that.
func (d *database) keep(ctx context.Context) error {
	tick := time.NewTicker(compactPoll)
	defer tick.Stop()
	for {
		var cause error
		select {
		case <-ctx.Done():
			return nil
		case cause = <-d.Err():
		case <-d.Server.StopNotify():
		case <-tick.C:
			if err := d.compactIfLarge(ctx); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "berth-apiserver:", err)
			}
			continue
		}
		if ctx.Err() != nil {
			return nil // etcd is stopped on purpose
		}
		return errors.Join(errors.New("etcd stopped"), cause)
	}
}

// compactIfLarge shrinks the database file once it reaches half of the quota. etcd itself drops old revisions every two minutes, which leaves free pages in the
// file and does not suffice for a burst of writes. compactIfLarge also clears the alarm that makes etcd reject writes after the quota was reached.
func (d *database) compactIfLarge(ctx context.Context) error {
	info, err := os.Stat(d.file)
	if err != nil {
		return fmt.Errorf("read the size of the database: %w", err)
	}
	// A database with more live data than half of the quota stays large. It is compacted again only when it has grown, because a compaction stops all requests.
	if info.Size() < min(max(d.quota/2, d.compacted/4*5), d.quota/10*9) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	// Continue after an error, because the call also fails if the current revision was already compacted.
	_, compactErr := d.client.Compact(ctx, d.Server.KV().Rev(), clientv3.WithCompactPhysical())
	if _, err := d.client.Defragment(ctx, endpoint); err != nil {
		return errors.Join(compactErr, fmt.Errorf("defragment the database: %w", err))
	}
	if info, err := os.Stat(d.file); err == nil {
		d.compacted = info.Size()
	}
	raised, err := d.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list the alarms of etcd: %w", err)
	}
	for _, alarm := range raised.Alarms {
		if alarm.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := d.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("clear the alarm of etcd: %w", err)
		}
	}
	return nil
}
