// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import "k8s.io/apimachinery/pkg/types"

const (
	// MostResultBytes is the maximum size of a result file that is read, in bytes; a backend may have a lower limit. Larger results belong in the artifacts
	// folder.
	MostResultBytes = 1 << 20
	// ResultHeadBytes is how much of the beginning of a result file is returned, in bytes.
	ResultHeadBytes = 4 << 10
)

// ResultStore is implemented by backends that keep the results of a program until Forget.
type ResultStore interface {
	// Place returns the paths of the results and inputs of a UID, for the next program that this manager starts with Process.Results. Place always returns the
	// same paths for a UID, and does no I/O.
	Place(uid types.UID) ResultPaths
	// Results returns the results of a UID after Observe has reported the exit. It never blocks, regardless of what the program left at the paths of Place. If
	// the result file cannot be read, the field Problem of the returned value explains why.
	Results(uid types.UID) Results
}

// ResultPaths is where the results of a program are. Paths are absolute.
type ResultPaths struct {
	// File is the result file, which the program creates. Artifacts is an existing folder.
	File, Artifacts string
	// Inputs is the folder with the files of Process.Inputs.
	Inputs string
	// Private reports that the paths are valid only in the container of the program: other processes cannot read the results there.
	Private bool
}

// Results describes the results that a program has left behind.
type Results struct {
	// File reports that something exists under the name of the result file. Size is its size in bytes; 0 if unknown.
	File bool
	Size int64
	// SHA256 is the hash of the whole file in hexadecimal, and Head its first ResultHeadBytes. If the file was not read, both are empty and Problem says
	// why.
	SHA256  string
	Head    []byte
	Problem string
	// Artifacts reports that the artifacts folder is not empty.
	Artifacts bool
	// Paths is where the results are, if an earlier manager with other options has put them elsewhere than Place; otherwise it is zero.
	Paths ResultPaths
}
