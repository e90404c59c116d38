//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A roceJoin is the membership of an identifier in a multicast group. The program attaches the
// queue pair itself.
type roceJoin struct {
	id       *cmID
	reported uint32 // guarded by cmID.mu; number of delivered events
}

// maxJoins is the greatest number of memberships.
const maxJoins = maxGroups

// groupOf returns the GID of a multicast address. An IPv4 group gets the prefix ff0e.
func groupOf(a netip.Addr) [16]byte {
	g := a.As16()
	if a.Is4() {
		g[0], g[1] = 0xff, 0x0e
	}
	return g
}

func (k *cmCommand) roceJoin() {
	id := k.idAt(44)
	if id == nil {
		return
	}
	a, ok := abi.ParseAddr(k.Body[min(16, len(k.Body)):])
	if !ok || !a.Addr().IsMulticast() {
		k.Return(0, unix.EINVAL)
		return
	}
	m := &id.s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	if id.dev == nil {
		id.dev = id.s.roceFor(id.ps, id.src.Addr())
	}
	usable := id.dev != nil && !id.destroyed
	id.mu.Unlock()
	if !usable || len(m.joins) >= maxJoins {
		m.mu.Unlock()
		k.Return(0, unix.EINVAL)
		return
	}
	if m.joins == nil {
		m.joins = map[uint32]*roceJoin{}
	}
	for m.joins[m.nextJoin] != nil {
		m.nextJoin = (m.nextJoin + 1) & 0x7fffffff
	}
	num, j := m.nextJoin, &roceJoin{id: id}
	m.joins[num] = j
	m.nextJoin = (num + 1) & 0x7fffffff
	m.mu.Unlock()
	if !k.answer(k.Body.U64(0), abi.Words(num)) {
		m.mu.Lock()
		delete(m.joins, num)
		m.mu.Unlock()
		return
	}
	const allMembers = 1<<24 - 1
	id.mu.Lock()
	f, ah := id.file, id.ahLocked(groupOf(a.Addr()))
	id.mu.Unlock()
	f.post(&cmEvent{CMEvent: abi.CMEvent{UID: k.Body.U64(8), ID: num, Type: abi.EvMulticastJoin,
		UD: &abi.UDParam{QP: allMembers, QKey: abi.DatagramKey, AH: ah}}, of: id, join: j})
}

func (k *cmCommand) roceLeave() {
	m := &k.f.s.roceCM
	num := k.Body.U32(8)
	m.mu.Lock()
	j := m.joins[num]
	if j != nil && j.id.channel() != k.f {
		j = nil
	}
	if j != nil {
		delete(m.joins, num)
	}
	m.mu.Unlock()
	if j == nil {
		k.Return(0, unix.ENOENT)
		return
	}
	k.f.dropJoin(j)
	j.id.mu.Lock()
	n := j.reported
	j.id.mu.Unlock()
	k.answer(k.Body.U64(0), abi.Words(n))
}

// dropJoin removes the event of a membership, unless the program has read the event.
func (f *cmFile) dropJoin(j *roceJoin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := f.events[:0:0]
	for _, e := range f.events {
		if e.join != j {
			keep = append(keep, e)
		}
	}
	f.events = keep
	f.signalLocked(-1)
}
