// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command web is the sample project of docs/laptop-to-cluster.md. It listens on HOST and PORT.
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
			host, _ := os.Hostname() // on an error the greeting has no host name
			_, _ = fmt.Fprintln(w, "Hello from", host)
		}),
	}
	log.Println("listening on", server.Addr)
	log.Fatal(server.ListenAndServe())
}
