// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

const http = require("http")
const zlib = require("zlib")

const server = http.createServer((request, response) => {
  switch (request.url.replace("http://localhost", "")) {
    case "/length":
      response.setHeader("X-Mixed-case", "kept")
      response.setHeader("Content-Length", "6")
      return response.end("answer")
    case "/chunked":
      response.write("one ")
      return response.end("two")
    case "/trailers":
      response.setHeader("Trailer", "Sum")
      response.write("answer")
      response.addTrailers({ Sum: "42" })
      return response.end()
    case "/none":
      response.statusCode = 204
      return response.end()
    case "/same":
      response.writeHead(304, { ETag: '"1"' })
      return response.end()
    case "/cookies":
      response.setHeader("Set-Cookie", ["a=1; Path=/", "b=2", "a=3"])
      return response.end("answer")
    case "/gzip":
      response.writeHead(200, { "Content-Encoding": "gzip", "Content-Type": "text/html" })
      return response.end(zlib.gzipSync("answer"))
    case "/large":
      response.setHeader("X-Large", "x".repeat(32 << 10))
      return response.end("answer")
    case "/many":
      return response.end("0123456789".repeat(50000))
    case "/close":
      response.setHeader("Connection", "close")
      return response.end("answer")
    case "/hints":
      response.writeEarlyHints({ link: "</style.css>; rel=preload" })
      return response.end("answer")
    case "/echo":
      return request.pipe(response)
    case "/early":
      response.writeHead(413, { Connection: "close" })
      return response.end("too large", () => request.destroy())
  }
  response.statusCode = 404
  response.end("missing")
})
server.on("upgrade", (request, socket) => {
  socket.end("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello")
})
server.on("checkExpectation", (request, response) => {
  response.writeHead(417, { Connection: "close" })
  response.end()
})
server.listen(0, "127.0.0.1", () => console.log(server.address().port))
process.stdin.on("end", () => process.exit()).resume()
