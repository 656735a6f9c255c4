// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// memory saves work and is never needed to be right: what this manager has written itself, so that a cache that is late is noticed.
type memory struct {
	mu      sync.Mutex
	written map[types.NamespacedName]version
	// own are the last runs that were created here; seen is when runs were seen to have ended.
	own  process.Recent[bool]
	seen process.Sightings
}

type version struct {
	uid     types.UID
	version string
}

func (m *memory) wrote(object *v1alpha1.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.written == nil {
		m.written = map[types.NamespacedName]version{}
	}
	m.written[client.ObjectKeyFromObject(object)] = version{object.UID, object.ResourceVersion}
}

func (m *memory) leave(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.written, key)
}

// behind says that the object is older than what was written last.
func (m *memory) behind(object *v1alpha1.Plan) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.written[client.ObjectKeyFromObject(object)]
	if last.uid != object.UID {
		return false
	}
	is, errIs := strconv.ParseUint(object.ResourceVersion, 10, 64)
	was, errWas := strconv.ParseUint(last.version, 10, 64)
	return errIs == nil && errWas == nil && is < was
}
