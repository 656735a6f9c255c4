// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"io"
	"net/url"
	"regexp"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	queryInput  = "input"
	queryResume = "resume"
	// headerCounted announces that the manager sends frameReceived before it reads input. Earlier versions do not.
	headerCounted = "Berth-Input-Counted"
)

// CountedInput names the input of a client that counts it, so that the client can continue over another connection. The zero value is for input that is not counted.
type CountedInput struct {
	// Stream has 1 to 64 letters and digits, and is different for each client.
	Stream string
	// Resume means that a manager has counted the input before. If the process does not know it, it is another process, and the attachment ends.
	Resume bool
}

var streamName = regexp.MustCompile(`^[0-9A-Za-z]{0,64}$`)

// countedIn returns the input that a query names.
func countedIn(query url.Values) (CountedInput, error) {
	counted := CountedInput{query.Get(queryInput), query.Get(queryResume) != ""}
	if !streamName.MatchString(counted.Stream) {
		return CountedInput{}, errors.New("invalid name of an input: want at most 64 letters and digits")
	}
	return counted, nil
}

func (i CountedInput) addTo(query url.Values) {
	if i.Stream == "" {
		return
	}
	query.Set(queryInput, i.Stream)
	if i.Resume {
		query.Set(queryResume, "true")
	}
}

// read returns the input for a backend, which tells the client through conn what the process has received.
func (i CountedInput) read(in io.Reader, conn *Conn) io.Reader {
	if i.Stream == "" {
		return in
	}
	start := &starting{Reader: in, conn: conn}
	return &runtime.CountedInput{Reader: start, Stream: i.Stream, Resume: i.Resume, Received: func(receipt facts.Receipt) {
		start.told = true
		conn.received(InputState{true, receipt})
	}}
}

// starting is input that tells the client before the first Read that it is not counted, unless the backend has done so.
type starting struct {
	io.Reader
	conn *Conn
	told bool
}

func (s *starting) Read(to []byte) (int, error) {
	if !s.told {
		s.told = true
		s.conn.received(InputState{})
	}
	return s.Reader.Read(to)
}
