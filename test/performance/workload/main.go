// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command workload provides the programs that the benchmarks run. They do as little as possible.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(99)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("missing mode")
	}
	switch args[0] {
	case "idle":
		idle()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		idle()
	case "report":
		return report(args[1])
	case "report-and-serve":
		return errors.Join(sendPID(args[1]), serve())
	case "tree":
		return tree(args[1])
	case "serve":
		return serve()
	case "relay":
		return relay(args[1])
	case "load":
		return load(args[1])
	case "through":
		return pipeThrough(args[1:])
	}
	return fmt.Errorf("unknown mode %q", args[0])
}

// idle does nothing until the process is killed.
func idle() {
	for {
		time.Sleep(time.Hour)
	}
}

// report sends the PID of this process to a socket and then does nothing.
func report(socket string) error {
	if err := sendPID(socket); err != nil {
		return err
	}
	idle()
	return nil
}

// sendPID sends the PID of this process to a socket, to show that the program runs.
func sendPID(socket string) error {
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte(strconv.Itoa(os.Getpid())))
	return err
}

// tree makes the process the root of a tree of size processes.
func tree(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	for range n - 1 {
		if err := exec.Command(os.Args[0], "idle").Start(); err != nil {
			return err
		}
	}
	idle()
	return nil
}

// serve answers HTTP on the port in PORT.
func serve() error {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		return err
	}
	fmt.Printf("Local: http://%s/\n", listener.Addr()) // as development servers do
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "hello from", os.Getpid()) })
	server := &http.Server{Handler: hello, ReadHeaderTimeout: time.Minute}
	return server.Serve(listener)
}

// relay prints its address and copies data between connections to that address and connections to target. This is the minimum that any proxy does.
// The program exits when its standard input closes.
func relay(target string) error {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		server, err := net.Dial("tcp", target)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(server, client) }()
		go func() { _, _ = io.Copy(client, server) }()
	}
}

const (
	loadConnections = 50
	loadTime        = time.Second
)

// load sends GETs to a URL on 50 connections and prints the number of responses per second. Each connection sends its next GET after the response to
// the previous one.
func load(url string) error {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: loadConnections}}
	ctx, cancel := context.WithTimeout(context.Background(), loadTime)
	defer cancel()
	var all sync.WaitGroup
	var answered atomic.Int64
	failed := make(chan error, loadConnections)
	for range loadConnections {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := get(client, url); err != nil {
					failed <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	all.Wait()
	close(failed)
	fmt.Println(float64(answered.Load()) / loadTime.Seconds())
	return <-failed
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return err
}

// pipeThrough starts a program. It copies the standard input of this process to the program, and the standard output of the program to that of this process.
// This is the minimum that any intermediary does.
func pipeThrough(command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(in, os.Stdin)
		_ = in.Close()
	}()
	if _, err := io.Copy(os.Stdout, out); err != nil {
		return err
	}
	return cmd.Wait()
}
