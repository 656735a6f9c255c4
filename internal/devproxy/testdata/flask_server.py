# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0

import gzip, logging, os, sys, threading
import flask
from werkzeug.serving import make_server

logging.getLogger("werkzeug").disabled = True
app = flask.Flask(__name__)

@app.get("/length")
def length(): return "answer"

@app.get("/chunked")
def chunked(): return flask.Response(iter(["one ", "two"]))

@app.get("/none")
def none(): return "", 204

@app.get("/same")
def same(): return "", 304, {"ETag": '"1"'}

@app.get("/cookies")
def cookies():
    response = flask.make_response("answer")
    for name in "ab":
        response.set_cookie(name, "1")
    return response

@app.get("/gzip")
def zipped(): return flask.Response(gzip.compress(b"answer", mtime=0), headers={"Content-Encoding": "gzip"})

@app.get("/large")
def large(): return "answer", {"X-Large": "x" * (32 << 10)}

@app.get("/many")
def many(): return "0123456789" * 50000

@app.route("/echo", methods=["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def echo(): return flask.request.get_data()

server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
