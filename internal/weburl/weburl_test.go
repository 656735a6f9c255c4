// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package weburl

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestFind_ExtractsURLsFromOutput(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		want []string
	}{
		"vite":                      {"  ➜  Local:   http://localhost:5173/", []string{"http://localhost:5173/"}},
		"vite in color":             {"  \x1b[32m➜\x1b[39m  \x1b[1mLocal\x1b[22m:   \x1b[36mhttp://localhost:\x1b[1m5173\x1b[22m/\x1b[39m", []string{"http://localhost:5173/"}},
		"vite with a base":          {"  ➜  Local:   http://localhost:\x1b[1m5173\x1b[22m/app/", []string{"http://localhost:5173/app/"}},
		"vite on the network":       {"  ➜  Network: http://192.168.1.20:5173/", []string{"http://192.168.1.20:5173/"}},
		"webpack":                   {"<i> [webpack-dev-server] Loopback: http://localhost:8080/, http://[::1]:8080/", []string{"http://localhost:8080/", "http://[::1]:8080/"}},
		"next":                      {"- Local:         http://localhost:3000", []string{"http://localhost:3000/"}},
		"python":                    {"Serving HTTP on 0.0.0.0 port 8000 (http://0.0.0.0:8000/) ...", []string{"http://0.0.0.0:8000/"}},
		"python on IPv6":            {"Serving HTTP on :: port 8000 (http://[::]:8000/) ...", []string{"http://[::]:8000/"}},
		"python without an address": {"Serving HTTP on 0.0.0.0 port 8000 ...", []string{"http://0.0.0.0:8000/"}},
		"django":                    {"Starting development server at http://127.0.0.1:8000/", []string{"http://127.0.0.1:8000/"}},
		"older django":              {"Development server is running at http://127.0.0.1:8000/", []string{"http://127.0.0.1:8000/"}},
		"flask":                     {" * Running on http://127.0.0.1:5000", []string{"http://127.0.0.1:5000/"}},
		"flask with a hint":         {" * Running on http://127.0.0.1:5000/ (Press CTRL+C to quit)", []string{"http://127.0.0.1:5000/"}},
		"puma":                      {"* Listening on http://127.0.0.1:3000", []string{"http://127.0.0.1:3000/"}},
		"uvicorn":                   {"INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)", []string{"http://127.0.0.1:8000/"}},
		"https":                     {"Listening on https://localhost:8443/ui.", []string{"https://localhost:8443/ui"}},
		"no port":                   {"open http://localhost/admin", []string{"http://localhost:80/admin"}},
		"https, no port":            {"open https://localhost", []string{"https://localhost:443/"}},
		"in parentheses":            {"(see http://localhost:8080/a(b)/c)", []string{"http://localhost:8080/a(b)/c"}},
		"in brackets":               {"[http://localhost:8080/x]", []string{"http://localhost:8080/x"}},
		"quoted":                    {`{"url":"http://localhost:8080/x","a":1}`, []string{"http://localhost:8080/x"}},
		"a token stays out":         {"http://localhost:8888/tree?token=abcdef", []string{"http://localhost:8888/tree"}},
		"a password stays out":      {"http://user:secret@localhost:8080/", nil},
		"a name with a port":        {"on http://devbox.example.org:8080/x", []string{"http://devbox.example.org:8080/x"}},
		"a hyperlink":               {"\x1b]8;;http://localhost:5173/\x07here\x1b]8;;\x07 http://localhost:5173/", []string{"http://localhost:5173/"}},
		"a link":                    {"For help, see: https://nodejs.org/en/docs/inspector", nil},
		"a debugger":                {"Debugger listening on ws://127.0.0.1:9229/0f2c936f-b1cd-4ac9-aab3-f63b0f33d55e", nil},
		"a port out of range":       {"http://localhost:70000/", nil},
		"port 0":                    {"http://localhost:0/", nil},
		"nothing":                   {"compiled in 20 ms, no port", nil},
		"empty":                     {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var got []string
			for _, u := range Find(tc.line) {
				got = append(got, u.String())
			}
			g.Expect(got).To(Equal(tc.want))
		})
	}
}

func TestRank_ClassifiesHosts(t *testing.T) {
	g := NewWithT(t)
	for host, want := range map[string]int{
		"localhost": rankLoopback, "app.localhost": rankLoopback, "127.0.0.1": rankLoopback, "127.1.2.3": rankLoopback, "::1": rankLoopback,
		"0.0.0.0": rankWildcard, "::": rankWildcard, "192.168.1.2": rankNetwork, "example.org": rankNetwork,
	} {
		g.Expect(rank(host)).To(Equal(want), host)
	}
}

func TestFind_DropsTooLongPath(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Find("http://localhost:1234/" + strings.Repeat("a", maxPath))).To(ConsistOf(HaveField("Path", "")))
}

func urlStrings(s *Scanner) []string {
	var out []string
	for _, u := range s.URLs() {
		out = append(out, u.String())
	}
	return out
}

func TestScanner_KeepsFirstOrLastURL(t *testing.T) {
	text := "starting\n  Network: http://10.0.0.2:5173/x/\r\n  Local: http://localhost:\x1b[1m5173\x1b[22m/app/\nGET http://localhost:5173/later\nhttp://127.0.0.1:24678\n"
	for _, size := range []int{1, 2, 3, 7, 64, 4096} {
		g := NewWithT(t)
		var first, last Scanner
		last.Last = true
		for rest := []byte(text); len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = first.Write(rest[:n])
			_, _ = last.Write(rest[:n])
			rest = rest[n:]
		}
		g.Expect(urlStrings(&first)).To(Equal([]string{"http://localhost:5173/app/", "http://127.0.0.1:24678/"}))
		g.Expect(urlStrings(&last)).To(Equal([]string{"http://localhost:5173/later", "http://127.0.0.1:24678/"}))
	}
}

func TestScanner_ReplacesURLOfUnfinishedLine(t *testing.T) {
	g := NewWithT(t)
	var s Scanner
	_, _ = s.Write([]byte("ready on http://localhost:3000/a"))
	g.Expect(urlStrings(&s)).To(Equal([]string{"http://localhost:3000/a"}))
	_, _ = s.Write([]byte("pp\n"))
	g.Expect(urlStrings(&s)).To(Equal([]string{"http://localhost:3000/app"}), "an address from an unfinished line is replaced")
}

func TestScanner_LimitsMemory(t *testing.T) {
	g := NewWithT(t)
	var s Scanner
	flood := []byte(strings.Repeat("x", 1<<16))
	for range 64 {
		_, _ = s.Write(flood)
	}
	_, _ = s.Write([]byte(" http://localhost:1111/"))
	g.Expect(len(s.line)).To(BeNumerically("<=", maxLine))
	g.Expect(urlStrings(&s)).To(BeEmpty())
	_, _ = s.Write([]byte("\nhttp://localhost:2222/\n"))
	g.Expect(urlStrings(&s)).To(Equal([]string{"http://localhost:2222/"}))
	for port := range 500 {
		_, _ = s.Write([]byte(URL{Scheme: "http", Host: "localhost", Port: int32(3000 + port)}.String() + "\n"))
	}
	g.Expect(s.URLs()).To(HaveLen(maxPorts))
}
