// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pattern

import (
	"fmt"
	"sync"
)

// maxCached bounds the memory of a Cache, in bytes.
const maxCached = 8 << 20

// Cache caches compiled patterns, so that reconciling an object again compiles nothing. Objects with the same patterns share one Set. The size of the cache
// is bounded: a full cache evicts arbitrary entries. The zero value is ready for use. A Cache is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	sets  map[string]*Set
	bytes int
}

// Compile is like the function Compile, and caches its result.
func (c *Cache) Compile(texts []string) *Set {
	key := fmt.Sprintf("%q", texts)
	c.mu.Lock()
	set := c.sets[key]
	c.mu.Unlock()
	if set != nil {
		return set
	}
	set = Compile(texts) // without the lock, so that other callers do not wait
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(key, set)
	return set
}

func (c *Cache) keep(key string, set *Set) {
	if _, known := c.sets[key]; known {
		return
	}
	if c.sets == nil {
		c.sets = map[string]*Set{}
	}
	added := weight(key, set)
	for old, other := range c.sets {
		if c.bytes+added <= maxCached {
			break
		}
		delete(c.sets, old)
		c.bytes -= weight(old, other)
	}
	c.sets[key] = set
	c.bytes += added
}

// weight estimates the memory of an entry, in bytes. The estimate is generous: an instruction of a compiled program takes about 50 bytes and counts as 100.
func weight(key string, set *Set) int {
	const entry, instruction, character = 1 << 10, 100, 4
	return entry + len(key) + len(set.Errors)*entry/4 + set.size*instruction + set.runes*character
}
