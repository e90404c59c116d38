//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// An rxeAH is an address handle.
type rxeAH struct {
	*rxe.AH
	pd *domain
}

// An rxeMW is a memory window.
type rxeMW struct {
	*rxe.Window
	pd *domain
}

// rxeDomain returns the domain with handle h, and counts another user of the domain. If there is
// none, rxeDomain answers the command with an error and returns nil.
func (k *command) rxeDomain(h uint32) *domain {
	k.x.mu.Lock()
	defer k.x.mu.Unlock()
	pd := k.x.pds.m[h]
	if pd == nil {
		k.fail(unix.EINVAL)
		return nil
	}
	pd.users++
	return pd
}

func (k *command) rxeLeave(pd *domain) {
	k.x.mu.Lock()
	pd.users--
	k.x.mu.Unlock()
}

func (k *command) rxeCreateAH() {
	x := k.x
	pd := k.rxeDomain(k.Body.U32(16))
	if pd == nil {
		return
	}
	const attrAt = 24
	a, err := x.roce.space.NewAH(domainMemory{x, pd}, k.Body[attrAt:])
	if err != nil {
		k.rxeLeave(pd)
		k.fail(rxeErrno(err))
		return
	}
	x.mu.Lock()
	h, ok := x.roce.ahs.add(&rxeAH{a, pd})
	x.mu.Unlock()
	switch {
	case !ok:
		k.fail(unix.ENOMEM)
	case k.answer(abi.Words(h), abi.Words(a.Num, 0)):
		return
	default:
		x.mu.Lock()
		x.roce.ahs.remove(h)
		x.mu.Unlock()
	}
	x.roce.space.CloseAH(a)
	k.rxeLeave(pd)
}

func (k *command) rxeDestroyAH() {
	a, ok := rxeTake(k, &k.x.roce.ahs, k.Body.U32(0), func(*rxeAH) bool { return false })
	if !ok {
		return
	}
	k.x.roce.space.CloseAH(a.AH)
	k.rxeLeave(a.pd)
	k.answer()
}

func (k *command) rxeAllocMW() {
	x := k.x
	pd := k.rxeDomain(k.Body.U32(8))
	if pd == nil {
		return
	}
	w, err := x.roce.space.NewWindow(domainMemory{x, pd}, rxe.WindowType(k.Body.U8(12)), func(key uint32) bool {
		_, taken := x.regions.Load(key)
		return taken
	})
	if err != nil {
		k.rxeLeave(pd)
		k.fail(rxeErrno(err))
		return
	}
	x.mu.Lock()
	h, ok := x.roce.mws.add(&rxeMW{w, pd})
	x.mu.Unlock()
	switch {
	case !ok:
		k.fail(unix.ENOMEM)
	case k.answer(abi.Words(h, x.roce.space.Key(w))):
		return
	default:
		x.mu.Lock()
		x.roce.mws.remove(h)
		x.mu.Unlock()
	}
	x.roce.space.CloseWindow(w)
	k.rxeLeave(pd)
}

func (k *command) rxeDeallocMW() {
	w, ok := rxeTake(k, &k.x.roce.mws, k.Body.U32(0), func(*rxeMW) bool { return false })
	if !ok {
		return
	}
	k.x.roce.space.CloseWindow(w.Window)
	k.rxeLeave(w.pd)
	k.answer()
}
