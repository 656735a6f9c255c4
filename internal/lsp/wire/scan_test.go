// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// envelopeFields is an envelope with text in place of spans.
type envelopeFields struct {
	Kind                                              Kind
	ID, Method, URI, Cancel, Token, WorkDone, Partial string
	IsError                                           bool
}

func fieldsOf(e *Envelope) envelopeFields {
	return envelopeFields{e.Kind, string(e.ID), string(e.Method), string(e.URI), string(e.CancelID), string(e.Token),
		string(e.WorkDoneToken), string(e.PartialResultToken), e.IsError}
}

func TestScan_ExtractsFields(t *testing.T) {
	for _, test := range []struct {
		body string
		want envelopeFields
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"textDocument/hover","params":{"textDocument":{"uri":"file:///a.go"},"position":{"line":1}}}`,
			envelopeFields{Kind: Request, ID: "1", Method: "textDocument/hover", URI: "file:///a.go"}},
		{` { "params" : { "textDocument" : { "version" : 3 , "uri" : "file:///a.go" } } , "method" : "textDocument/didSave" } `,
			envelopeFields{Kind: Notification, Method: "textDocument/didSave", URI: "file:///a.go"}},
		{`{"id":"a\"b","result":{"id":7,"method":"no","params":{"id":8}}}`, envelopeFields{Kind: Response, ID: `"a\"b"`}},
		{`{"result":null,"id":-2147483648}`, envelopeFields{Kind: Response, ID: "-2147483648"}},
		{`{"id":5}`, envelopeFields{Kind: Response, ID: "5"}},
		{`{"id":null,"error":{"code":-32700,"message":"id"}}`, envelopeFields{Kind: Response, ID: "null", IsError: true}},
		{`{"id":3,"result":1,"error":null}`, envelopeFields{Kind: Response, ID: "3"}},
		{`{"\u0069d":4,"m\u0065thod":"a\/b\u0063\ud83d\ude00","params":[{"id":9}]}`, envelopeFields{Kind: Request, ID: "4", Method: "a/bc\U0001F600"}},
		{`{"params":{"nested":{"id":1,"textDocument":{"uri":"no"}},"list":[{"id":2}]},"method":"m","id":3}`, envelopeFields{Kind: Request, ID: "3", Method: "m"}},
		{`{"method":"$/cancelRequest","params":{"id":"x"}}`, envelopeFields{Kind: Notification, Method: "$/cancelRequest", Cancel: `"x"`}},
		{`{"method":"$/progress","params":{"token":"t","value":{"token":"no","id":1}}}`, envelopeFields{Kind: Notification, Method: "$/progress", Token: `"t"`}},
		{`{"id":1,"method":"r","params":{"workDoneToken":12,"partialResultToken":"p","textDocument":{"uri":"file:///\u00e4\/b\tc"}}}`,
			envelopeFields{Kind: Request, ID: "1", Method: "r", WorkDone: "12", Partial: `"p"`, URI: "file:///ä/b\tc"}},
		{`{"method":"textDocument/publishDiagnostics","params":{"uri":"file:///a","diagnostics":[{"uri":"no"}]}}`,
			envelopeFields{Kind: Notification, Method: "textDocument/publishDiagnostics"}},
		{`{"method":"telemetry/event","params":{"ID":1,"Token":2,"URI":"x"}}`, envelopeFields{Kind: Notification, Method: "telemetry/event"}},
		{`{"method":"m","params":{"id":{"a":1},"token":[1],"workDoneToken":null,"partialResultToken":1.5,"textDocument":"x","uri":[]}}`,
			envelopeFields{Kind: Notification, Method: "m"}},
		{`{"method":"m","params":{"textDocument":{"uri":5}}}`, envelopeFields{Kind: Notification, Method: "m"}},
		{`{"method":"m","params":{}}`, envelopeFields{Kind: Notification, Method: "m"}},
		{`{"method":"m","params":[],"x":[0,-0,1.5e-3,2E+1,true,false,null,"\b\f\n\r\t\"\\\/",{},[[]],{"a":{}}]}`, envelopeFields{Kind: Notification, Method: "m"}},
		{`{"method":"m","params":` + nested(maxDepth-1) + `}`, envelopeFields{Kind: Notification, Method: "m"}},
	} {
		t.Run(test.body[:min(60, len(test.body))], func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(json.Valid([]byte(test.body))).To(BeTrue())
			var e Envelope
			g.Expect(Scan([]byte(test.body), &e)).To(Succeed())
			g.Expect(fieldsOf(&e)).To(Equal(test.want))
			checkSpans(t, []byte(test.body), &e)
		})
	}
}

func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

// checkSpans checks that the spans match the values in the body.
func checkSpans(t *testing.T, body []byte, e *Envelope) {
	t.Helper()
	for _, span := range []struct {
		Span
		want []byte
	}{{e.IDSpan, e.ID}, {e.TokenSpan, e.Token}, {e.WorkDoneSpan, e.WorkDoneToken}, {e.PartialSpan, e.PartialResultToken}} {
		if (span.want == nil) != (span.Span == Span{}) || !bytes.Equal(body[span.Start:span.End], span.want) {
			t.Fatalf("span %v is %q, value is %q", span.Span, body[span.Start:span.End], span.want)
		}
	}
	if !bytes.Equal(body[e.ResultSpan.Start:e.ResultSpan.End], e.Result) {
		t.Fatalf("span %v is %q, value is %q", e.ResultSpan, body[e.ResultSpan.Start:e.ResultSpan.End], e.Result)
	}
	for _, value := range [][]byte{e.Params, e.Result} {
		if value != nil && !json.Valid(value) {
			t.Fatalf("value is %q", value)
		}
	}
}

// invalidBodies contains bodies that Scan must reject: some decoders accept them, or decoders interpret them differently.
var invalidBodies = []string{
	``, ` `, `1`, `"a"`, `null`, `{}`, `[]`, `[{"id":1,"method":"m"}]`, `{"jsonrpc":"2.0"}`, `{"result":1}`,
	`{"id":1,"method":"m"`, `{"id":1,"method":"m"}}`, `{"id":1,"method":"m"} x`, `{"id":1,"method":"m"}{"id":1}`, `{"id":1,}`, `{,"id":1}`,
	`{"id" 1}`, `{"id":}`, `{id:1}`, `{'id':1}`, `{"id":1 "method":"m"}`, `{"id":1,"method":"m}`, `{"id":1,"method":"a\x"}`,
	`{"id":1,"method":"a\u12g4"}`, `{"id":1,"method":"a\u12"}`, `{"id":1,"method":"a\`, "{\"id\":1,\"method\":\"a\nb\"}",
	"{\"id\":1,\"method\":\"a\x00\"}", "\ufeff" + `{"id":1,"method":"m"}`, "{\u00a0\"id\":1}",
	`{"id":1,"id":2,"method":"m"}`, `{"id":1,"\u0069d":2,"method":"m"}`, `{"id":1,"method":"m","method":"n"}`,
	`{"id":1,"ID":2,"method":"m"}`, `{"ID":1,"method":"m"}`, `{"Method":"m"}`, `{"id":1,"re\u017fult":1}`, "{\"id\":1,\"re\u017fult\":1}",
	`{"method":"m","params":{},"params":{"id":1}}`, `{"method":"m","params":{"id":1,"id":2}}`, `{"method":"m","params":{"id":1,"ID":2}}`,
	`{"method":"m","params":{"Token":1,"token":2}}`, `{"method":"m","params":{"WorkDoneToken":1}}`, `{"method":"m","params":{"workDoneTo\u212aen":1}}`,
	`{"method":"m","params":{"textdocument":{"uri":"x"}}}`, `{"method":"m","params":{"textDocument":{"uri":"x","uri":"y"}}}`,
	`{"id":1,"method":"m","result":1}`, `{"id":1,"method":"m","error":{}}`, `{"id":null,"method":"m"}`,
	`{"id":1.0,"method":"m"}`, `{"id":1e3,"method":"m"}`, `{"id":{},"method":"m"}`, `{"id":[1],"method":"m"}`, `{"id":true,"method":"m"}`,
	`{"id":"` + strings.Repeat("x", maxIDBytes) + `","method":"m"}`, `{"id":1,"method":5}`, `{"id":1,"method":null}`, `{"id":nul,"method":"m"}`,
	`{"method":"m","params":` + nested(maxDepth) + `}`, `{"method":"m","params":` + strings.Repeat(`{"a":`, maxDepth) + `1` + strings.Repeat(`}`, maxDepth) + `}`,
	`{"method":"m","x":` + strings.Repeat("[", 100_000), `{"method":"m","x":[1,2}}`, `{"method":"m","x":{"a":1]}`, `{"method":"m","x":[1 2]}`,
	`{"method":"m","x":[,1]}`, `{"method":"m","x":[1,]}`, `{"method":"m","x":{"a":1,}}`, `{"method":"m","x":{"a"}}`, `{"method":"m","x":{1:2}}`,
	`{"method":"m","x":01}`, `{"method":"m","x":-}`, `{"method":"m","x":1.}`, `{"method":"m","x":.5}`, `{"method":"m","x":1e}`, `{"method":"m","x":+1}`,
	`{"method":"m","x":tru}`, `{"method":"m","x":NaN}`, `{"method":"m","x":0x1}`, `{"method":"m","x":undefined}`, `{"method":"m","x":/**/1}`,
}

func TestScan_RejectsInvalidMessages(t *testing.T) {
	for _, body := range invalidBodies {
		t.Run(body[:min(60, len(body))], func(t *testing.T) {
			NewWithT(t).Expect(Scan([]byte(body), &Envelope{})).To(MatchError(errMessage))
		})
	}
}

func TestScan_RejectsEveryTruncation(t *testing.T) {
	body := []byte(`{"id":"a\u0062","method":"m","params":{"textDocument":{"uri":"x\ny"},"token":-1.5e+3,"list":[true,false,null,{"a":[]}]}}`)
	g := NewWithT(t)
	var e Envelope
	g.Expect(Scan(body, &e)).To(Succeed())
	for i := range body {
		g.Expect(Scan(body[:i], &e)).To(MatchError(errMessage), "%s", body[:i])
	}
}

func TestAppend_ReplacesIDsAndTokens(t *testing.T) {
	g := NewWithT(t)
	body := []byte(`{"params":{"workDoneToken":"w","partialResultToken":7,"x":1},"id":"old","method":"m"}`)
	var e Envelope
	g.Expect(Scan(body, &e)).To(Succeed())
	frame := func(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }

	g.Expect(string(e.AppendWithID([]byte("before"), body, []byte("12345")))).To(Equal(
		"before" + frame(`{"params":{"workDoneToken":"w","partialResultToken":7,"x":1},"id":12345,"method":"m"}`)))
	g.Expect(string(AppendReplaced(nil, body, []Replacement{
		{e.IDSpan, []byte("1")}, {e.TokenSpan, []byte("never")},
		{e.PartialSpan, []byte(`"pp"`)}, {e.WorkDoneSpan, []byte(`"long token"`)},
	}))).To(Equal(frame(`{"params":{"workDoneToken":"long token","partialResultToken":"pp","x":1},"id":1,"method":"m"}`)))
	g.Expect(string(AppendReplaced(nil, body, nil))).To(Equal(frame(string(body))))

	notification := []byte(`{"method":"m"}`)
	g.Expect(Scan(notification, &e)).To(Succeed())
	g.Expect(string(e.AppendWithID(nil, notification, []byte("1")))).To(Equal(frame(`{"method":"m"}`)))
}

// request returns a request of about the given size. Its ID is at the end, which is the worst case for a search.
func request(size int) []byte {
	body := []byte(`{"jsonrpc":"2.0","method":"textDocument/references","params":{"textDocument":{"uri":"file:///w/a.go"},"workDoneToken":"w","items":[`)
	for i := 0; len(body) < size-120; i++ {
		body = fmt.Appendf(body, `{"uri":"file:///src/pkg/file%d.go","range":{"start":{"line":%d,"character":4},"end":{"line":%d,"character":17}},"t":"a\nb"},`, i, i, i)
	}
	return append(body, `null]},"id":4711}`...)
}

func TestReadScanAndAppend_DoNotAllocate(t *testing.T) {
	for _, size := range []int{300, 30 << 10, 200 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			g := NewWithT(t)
			frame := AppendFrame(nil, request(size))
			reader := NewReader(&repeatingReader{data: frame}, Limits{}, NewBudget(1<<20))
			var e Envelope
			var out []byte
			relay := func() {
				body, err := reader.Read()
				if err != nil {
					panic(err)
				}
				if err := Scan(body, &e); err != nil {
					panic(err)
				}
				out = e.AppendWithID(out[:0], body, []byte("12345"))
				out = AppendReplaced(out[:0], body, []Replacement{{e.IDSpan, e.WorkDoneToken}, {e.WorkDoneSpan, e.ID}})
			}
			relay()
			g.Expect(testing.AllocsPerRun(20, relay)).To(BeZero())
			g.Expect(e.ID).To(Equal([]byte("4711")))
		})
	}
}

// repeatingReader is an endless stream of the same data.
type repeatingReader struct {
	data []byte
	at   int
}

func (r *repeatingReader) Read(into []byte) (int, error) {
	n := copy(into, r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	return n, nil
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body := request(size)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var e Envelope
			for b.Loop() {
				if err := Scan(body, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRelay measures the whole work per message: read, scan, and write with another ID.
func BenchmarkRelay(b *testing.B) {
	for _, size := range []int{300, 30 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			frame := AppendFrame(nil, request(size))
			reader := NewReader(&repeatingReader{data: frame}, Limits{}, nil)
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			var e Envelope
			var out []byte
			for b.Loop() {
				body, err := reader.Read()
				if err != nil {
					b.Fatal(err)
				}
				if err := Scan(body, &e); err != nil {
					b.Fatal(err)
				}
				out = e.AppendWithID(out[:0], body, []byte("12345"))
			}
		})
	}
}

// TestOrdinary_FindsFirstSpecialByte puts every byte value at the boundaries of the blocks that the function ordinary scans. All other bytes of the text have
// the same value, such as that of a special byte, or one that an incorrect scan could mistake for a special byte.
func TestOrdinary_FindsFirstSpecialByte(t *testing.T) {
	data := make([]byte, 16+2*32+8+1)
	for _, place := range []int{0, 1, 7, 8, 15, 16, 17, 47, 48, 49, 79, 80, 87, 88} {
		for _, other := range []byte("a\x00\x1f !\"#[\\]\x7f\x80\xa2\xdc\xff") {
			for i := range data {
				data[i] = other
			}
			for c := range 256 {
				data[place] = byte(c)
				want := slices.IndexFunc(data, func(c byte) bool { return !plain[c] })
				if want < 0 {
					want = len(data)
				}
				if got := ordinary(data); got != want {
					t.Fatalf("% x: %d, not %d", data, got, want)
				}
			}
		}
	}
}

func TestScan_DetectsDocumentChanges(t *testing.T) {
	for body, want := range map[string]bool{
		`{"id":1,"result":{"documentChanges":[]}}`:                    true,
		`{"id":1,"result":[1,{"edit":{"a":1,"documentChanges":[]}}]}`: true,
		`{"id":1,"result":{"document\u0043hanges":[]}}`:               true,
		`{"id":1,"result":{"a":"documentChanges"}}`:                   false,
		`{"id":1,"result":["documentChanges",{"documentchanges":1}]}`: false,
		`{"id":1,"result":null}`:                                      false,
	} {
		var e Envelope
		NewWithT(t).Expect(Scan([]byte(body), &e)).To(Succeed(), body)
		NewWithT(t).Expect(e.Changes).To(Equal(want), body)
	}
}
