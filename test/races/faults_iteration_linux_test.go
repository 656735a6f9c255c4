// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

func init() {
	mutants = append(mutants, mutant{row: "R03", without: "the snapshot behind the pages of a list: each page is taken from the objects that exist at that moment", sees: "seen exactly once",
		patient: true, includesUsers: true, wrapTransport: func(next http.RoundTripper) http.RoundTripper { return listsByIndex{next} }})
}

// listsByIndex takes each page of a list from the objects that exist at that moment, starting at the index at which the previous page ended.
type listsByIndex struct{ next http.RoundTripper }

func (c listsByIndex) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/instances") || limit == 0 || limit > 10 {
		return c.next.RoundTrip(req)
	}
	at, _ := strconv.Atoi(query.Get("continue"))
	query.Del("limit")
	query.Del("continue")
	whole := req.Clone(req.Context())
	whole.URL.RawQuery = query.Encode()
	answer, err := c.next.RoundTrip(whole)
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	list, err := decodeResponse(answer)
	if err != nil {
		return nil, err
	}
	items, _ := list["items"].([]any)
	end := min(at+limit, len(items))
	if end < len(items) {
		childMap(list, "metadata")["continue"] = strconv.Itoa(end)
	}
	list["items"] = items[min(at, end):end]
	data, err := json.Marshal(list)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return answer, err
}
