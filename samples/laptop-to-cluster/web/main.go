// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command web is the project of docs/laptop-to-cluster.md: it listens where HOST and PORT say.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	server := &http.Server{
		Addr:              net.JoinHostPort(os.Getenv("HOST"), os.Getenv("PORT")),
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			host, _ := os.Hostname() // without one the greeting is shorter
			_, _ = fmt.Fprintln(w, "Hello from", host)
		}),
	}
	log.Println("listening on", server.Addr)
	log.Fatal(server.ListenAndServe())
}
