//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// objects lists the programs' objects on a device, for "rdma resource".
func (d *device) objects() (all []abi.Object) {
	for i, x := range d.contexts() {
		all = append(all, abi.NewObject(abi.ObjectContext, uint32(i), x.pid))
		all = append(all, x.objects()...)
	}
	return append(all, d.s.cm.objects(d)...)
}

// objects lists the objects of the context.
func (x *context) objects() (all []abi.Object) {
	x.mu.Lock()
	defer x.mu.Unlock()
	pds := map[*domain]uint32{}
	for h, pd := range x.pds.m {
		pds[pd] = h
		all = append(all, abi.NewObject(abi.ObjectPD, h, x.pid).Users(pd.users))
	}
	for h, cq := range x.cqs.m {
		all = append(all, abi.NewObject(abi.ObjectCQ, h, x.pid).CQE(cq.n).Users(cq.users))
	}
	for _, q := range x.qps.m {
		q.mu.Lock()
		state := q.state
		q.mu.Unlock()
		all = append(all, abi.NewObject(abi.ObjectQP, q.num, x.pid).QP(abi.TypeRC, state, pds[q.pd]))
	}
	for h, mr := range x.mrs.m {
		all = append(all, abi.NewObject(abi.ObjectMR, h, x.pid).Length(mr.length))
	}
	for h := range x.srqs.m {
		all = append(all, abi.NewObject(abi.ObjectSRQ, h, x.pid))
	}
	if x.roce != nil {
		all = append(all, x.roce.objectsLocked(x.pid, pds)...)
	}
	return all
}

// objects lists the identifiers of a device.
func (t *cmTable) objects(d *device) (all []abi.Object) {
	t.mu.Lock()
	ids := make([]*cmID, 0, len(t.m))
	for _, id := range t.m {
		ids = append(ids, id)
	}
	t.mu.Unlock()
	for _, id := range ids {
		id.mu.Lock()
		if id.dev == d {
			pid := uint32(0)
			if id.file != nil {
				pid = id.file.pid
			}
			all = append(all, abi.NewObject(abi.ObjectCMID, id.num, pid).CM(kernelStates[id.state],
				uint32(id.ps), socketAddress(id.src), socketAddress(id.dst)))
		}
		id.mu.Unlock()
	}
	return all
}

// kernelStates maps the states of identifiers to the kernel's numbers.
var kernelStates = map[cmState]uint8{
	cmAddrResolved: 2, cmRouteResolved: 4, cmRequested: 5, cmConnecting: 5, cmConnected: 5,
	cmOver: 6, cmBound: 7, cmListening: 8,
}

func socketAddress(a netip.AddrPort) []byte {
	if !a.IsValid() {
		return nil
	}
	b := make(abi.Body, 28)
	abi.PutAddr(b, a)
	return b
}
