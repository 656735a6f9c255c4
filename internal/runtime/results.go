// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import "k8s.io/apimachinery/pkg/types"

const (
	// MostResultBytes is how large a result file may be to be taken, in bytes; a backend may take less. What is larger belongs into the folder of
	// artifacts.
	MostResultBytes = 1 << 20
	// ResultHeadBytes is how much of the beginning of a result file is given, in bytes.
	ResultHeadBytes = 4 << 10
)

// Keeper is implemented by backends that keep what a program leaves to others, until Forget.
type Keeper interface {
	// Place says where the program of a UID that is started with Process.Results leaves its results, and finds what it was given. It is the same
	// for ever, and asks nobody.
	Place(uid types.UID) Place
	// Results says what is there, once Observe has told of the end. It never waits, whatever the program has put there, and what cannot be taken is
	// explained in Problem.
	Results(uid types.UID) Results
}

// Place is where the results of a program are. Paths are absolute.
type Place struct {
	// File is the result file, which the program makes; Artifacts is a folder that is there.
	File, Artifacts string
	// Inputs is the folder with the files of Process.Inputs.
	Inputs string
	// Private says that the paths mean something to the program alone: nobody else finds there what it has left.
	Private bool
}

// Results is what a program has left.
type Results struct {
	// File says that there is something under the name of the result file; Size is its size in bytes, 0 when that is not known.
	File bool
	Size int64
	// SHA256 is that of the whole file in hexadecimal, and Head its beginning. Both are empty when it was not taken; Problem says then why.
	SHA256  string
	Head    []byte
	Problem string
	// Artifacts says that something is in the folder of artifacts.
	Artifacts bool
}
