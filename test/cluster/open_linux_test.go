// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"os"
	"strings"

	"github.com/gorilla/websocket"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// open runs berth open until the end of the spec, and returns the address that it prints.
func (t *tenant) open(ctx context.Context) string {
	GinkgoHelper()
	command := clusterCommand(context.WithoutCancel(ctx), "berth", "open", "-n", t.namespace, "devserver/"+t.object.GetName()) // stopped by the cleanup
	printed, err := command.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(command.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(command.Process.Signal(os.Interrupt)).To(Succeed())
		Expect(command.Wait()).To(Succeed())
	})
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(printed).ReadString('\n')
		line <- text
	}()
	var address string
	Eventually(ctx, line).Should(Receive(&address))
	Expect(address).To(HavePrefix("http://127.0.0.1:"))
	return strings.TrimSpace(address)
}

// echo sends a message over a WebSocket, as a hot-reload client does, and returns the reply.
func echo(ctx context.Context, address, text string) string {
	GinkgoHelper()
	conn, response, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(address, "http"), nil)
	Expect(err).NotTo(HaveOccurred())
	Expect(response.Body.Close()).To(Succeed())
	defer func() { _ = conn.Close() }()
	Expect(conn.WriteMessage(websocket.TextMessage, []byte(text))).To(Succeed())
	_, answer, err := conn.ReadMessage()
	Expect(err).NotTo(HaveOccurred())
	return string(answer)
}
