// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command server is a language server for tests: its hover response identifies the process, and a definition request makes it exit.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type message struct {
	Version string           `json:"jsonrpc"`
	ID      *json.RawMessage `json:"id,omitempty"`
	Method  string           `json:"method,omitempty"`
	Result  any              `json:"result,omitempty"`
}

func main() {
	stubborn := len(os.Args) > 1 && os.Args[1] == "stubborn"
	if stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	reader := bufio.NewReader(os.Stdin)
	for {
		request, err := read(reader)
		if err != nil {
			break
		}
		if request.Method == "textDocument/definition" {
			os.Exit(3)
		}
		if request.Method == "exit" && !stubborn {
			os.Exit(0)
		}
		if request.ID != nil && request.Method != "" {
			write(message{Version: "2.0", ID: request.ID, Result: answer(request.Method)})
		}
	}
	for stubborn {
		time.Sleep(time.Hour)
	}
}

func answer(method string) any {
	switch method {
	case "initialize":
		return map[string]any{
			"capabilities": map[string]any{"hoverProvider": true, "definitionProvider": true, "textDocumentSync": 1},
			"serverInfo":   map[string]any{"name": "tester", "version": "1"},
		}
	case "textDocument/hover":
		directory, _ := os.Getwd()
		return map[string]any{"contents": fmt.Sprintf("%d %s %s", os.Getpid(), directory, strings.Join(os.Environ(), " "))}
	}
	return nil
}

func read(reader *bufio.Reader) (message, error) {
	length := 0
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return message{}, err
		}
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		if name, value, found := strings.Cut(line, ":"); found && strings.EqualFold(name, "Content-Length") {
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(reader, body); err != nil {
		return message{}, err
	}
	var m message
	return m, json.Unmarshal(body, &m)
}

func write(m message) {
	body, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	fmt.Printf("Content-Length: %d\r\n\r\n%s", len(body), body)
}
