// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"io"

	"github.com/berth-dev/berth/internal/facts"
)

var (
	// ErrInputEnd is the error of CountedInput.Read at the end of the input of the user. The attachment continues.
	ErrInputEnd = errors.New("the input has ended")
	// ErrUnknownInput is the error of an attachment that resumes counted input of which the process has received nothing, usually because it is another process.
	ErrUnknownInput = errors.New("the process has received no earlier part of this input")
)

// CountedInput is input of an attachment whose bytes are counted, so that a client that loses its connection learns what the process has received, and sends only
// the rest over the next one. A backend that supports it calls Received before the first Read, and then for each piece. Other backends treat it as any io.Reader.
type CountedInput struct {
	io.Reader
	// Stream names the input; the attachments of one client have the same name. Resume means that an earlier attachment has called Received.
	Stream   string
	Resume   bool
	Received func(facts.Receipt)
}
