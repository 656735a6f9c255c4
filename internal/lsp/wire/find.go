// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

// Found is the position of a value that Find has found.
type Found struct {
	Span
	// Index is the index of the value, or of what contains it, in the innermost array around it; -1 if there is no array.
	Index int
}

// Find returns the values at any of the paths in JSON text, in their order in the text. An element of a path is a key, or "*" for each member of an object and each
// element of an array. At most 32 paths are supported. Find returns nothing if the text is not valid JSON.
func Find(text []byte, paths ...[]string) []Found {
	f := finder{scanner: scanner{body: text}, paths: paths}
	if f.value(1<<len(paths)-1, 0, -1) != nil {
		return nil
	}
	return f.found
}

type finder struct {
	scanner
	paths [][]string
	found []Found
}

// value consumes a value. paths is the set of paths whose first elements lead to it, and depth the number of these elements.
func (f *finder) value(paths uint64, depth, index int) error {
	c := f.peek()
	begin, deeper := f.at, uint64(0)
	for i, path := range f.paths {
		if paths&(1<<i) != 0 && len(path) > depth {
			deeper |= 1 << i
		}
	}
	var err error
	switch {
	case deeper == 0 || c != '{' && c != '[':
		err = f.skip(depth)
	case c == '{':
		err = f.object(deeper, depth, index)
	default:
		err = f.array(deeper, depth)
	}
	if deeper != paths {
		f.found = append(f.found, Found{Span{begin, f.at}, index})
	}
	return err
}

func (f *finder) object(paths uint64, depth, index int) error {
	f.at++
	for first := true; ; first = false {
		key, _, ok, err := f.member(first)
		if err != nil || !ok {
			return err
		}
		if err := f.value(f.matching(paths, depth, string(key)), depth+1, index); err != nil {
			return err
		}
	}
}

func (f *finder) array(paths uint64, depth int) error {
	f.at++
	if f.peek() == ']' {
		f.at++
		return nil
	}
	matching := f.matching(paths, depth, "*")
	for index := 0; ; index++ {
		if err := f.value(matching, depth+1, index); err != nil {
			return err
		}
		switch f.peek() {
		case ',':
			f.at++
		case ']':
			f.at++
			return nil
		default:
			return f.fail("expected , or ]")
		}
	}
}

// matching returns those of the paths whose next element matches a key.
func (f *finder) matching(paths uint64, depth int, key string) (matching uint64) {
	for i, path := range f.paths {
		if paths&(1<<i) != 0 && (path[depth] == "*" || path[depth] == key) {
			matching |= 1 << i
		}
	}
	return matching
}
