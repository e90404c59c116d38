//go:build linux && (amd64 || arm64)

package rdma

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/rocecm"
)

// A roceManager connects identifiers of RoCE devices if this service serves both ends. A [cmWire]
// connects identifiers with all other peers.
type roceManager struct {
	mu        sync.Mutex           // taken before cmID.mu
	listeners map[*cmID]bool       // guarded by mu
	joins     map[uint32]*roceJoin // guarded by mu; by number
	nextJoin  uint32               // guarded by mu
}

// A roceID is the RoCE part of an identifier. It is guarded by roceManager.mu.
type roceID struct {
	peer           *cmID // the other end; nil before the request, and after either end is closed
	qpn, remoteQPN uint32
	psn, remotePSN uint32 // first packet sequence number of each side [ROCE-CM-3]
	ird, ord       uint8
	retry, rnr     uint8
	over           bool // the connection has ended, and the program was informed

	wire    *rocecm.Conn // connection with a peer that this service does not serve, otherwise nil
	peerGID rxe.GID      // address of the peer of wire

	// A request that other services of this host refuse is repeated until a time, see refusedFor. A
	// nil again is not repeated.
	again *abi.ConnParam
	until time.Time
}

// A roceCMHandler serves a command on identifiers of RoCE devices. The number of the identifier is
// at the offset at of the body.
type roceCMHandler struct {
	at    int
	serve func(*cmCommand)
}

// roceCMHandlers holds the commands that RoCE devices serve in another way than iWARP devices.
var roceCMHandlers = map[abi.CMCommand]roceCMHandler{
	abi.CMBindIP:      {36, (*cmCommand).roceBindIP},
	abi.CMResolveIP:   {56, (*cmCommand).roceResolveIP},
	abi.CMQueryRoute:  {8, (*cmCommand).roceQueryRoute},
	abi.CMInitQPAttr:  {8, (*cmCommand).roceInitQPAttr},
	abi.CMListen:      {0, (*cmCommand).roceListen},
	abi.CMConnect:     {272, (*cmCommand).roceConnect},
	abi.CMAccept:      {280, (*cmCommand).roceAccept},
	abi.CMReject:      {0, (*cmCommand).roceReject},
	abi.CMDisconnect:  {0, (*cmCommand).roceDisconnect},
	abi.CMJoinIPMcast: {44, (*cmCommand).roceJoin},
	abi.CMLeaveMcast:  {-1, (*cmCommand).roceLeave},
}

// isRoCE reports whether a command is for a RoCE device. The device is determined when the
// identifier is bound. at is the offset of the identifier's number in the body; a negative at means
// that the body has no number.
func (k *cmCommand) isRoCE(at int) bool {
	s := k.f.s
	if at < 0 {
		return s.hasRoCE()
	}
	id := s.cm.get(k.Body.U32(at))
	if id == nil || id.channel() != k.f || !s.hasRoCE() { // the common code reports the error
		return false
	}
	var a netip.AddrPort
	switch k.Command {
	case abi.CMBindIP:
		a, _ = abi.ParseAddr(k.Body[min(8, len(k.Body)):])
	case abi.CMResolveIP:
		if a, _ = abi.ParseAddr(k.Body); !a.IsValid() || a.Addr().IsUnspecified() {
			dst, ok := abi.ParseAddr(k.Body[min(28, len(k.Body)):])
			if ip, err := sourceFor(dst); ok && err == nil {
				a = netip.AddrPortFrom(ip, 0)
			}
		}
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state != cmIdle || id.roce != nil {
		return id.roce != nil
	}
	if s.roceFor(id.ps, a.Addr()) == nil {
		return false
	}
	id.roce = &roceID{}
	return true
}

func (s *Service) hasRoCE() bool {
	for _, d := range s.devices {
		if d.is == roce {
			return true
		}
	}
	return false
}

// roceFor returns the RoCE device that serves an address in a port space, or nil if an iWARP
// device, or no device, serves the address. If a RoCE device and an iWARP device both serve all
// addresses, connections belong to the iWARP device and datagrams to the RoCE device.
func (s *Service) roceFor(ps uint16, a netip.Addr) *device {
	var rest *device
	iwarp := false
	for _, d := range s.devices {
		switch {
		case d.is == roce && d.owns(a):
			return d
		case d.is == roce && len(d.addrs) == 0:
			rest = d
		case d.is == siw && d.owns(a):
			return nil
		case d.is == siw && len(d.addrs) == 0:
			iwarp = true
		}
	}
	if rest == nil && !iwarp && (!a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast()) {
		for _, d := range s.devices { // any device will do
			if d.is == roce {
				rest = d
				break
			}
		}
	}
	if iwarp && ps == psTCP {
		return nil
	}
	return rest
}

// ownLoopback is the address of this host on every device.
var ownLoopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// hasLoopback reports whether the device has a separate address of the loopback interface. The
// device then serves no other addresses of the interface, except ownLoopback.
func (d *device) hasLoopback() bool {
	return slices.ContainsFunc(d.addrs, netip.Addr.IsLoopback)
}

// gidOf returns the GID for a local address, and the index in the table. For loopback addresses
// missing in the table, gidOf returns the first GID after the link-local GID. ok is false if the
// device does not serve the address.
func (d *device) gidOf(a netip.Addr) (g rxe.GID, index uint8, ok bool) {
	a = a.Unmap().WithZone("")
	all := d.gids.entries()
	for i, e := range all {
		if e.gid == a.As16() {
			return e.gid, uint8(i), true
		}
	}
	if !a.IsLoopback() || len(all) == 0 || d.hasLoopback() && a != ownLoopback {
		return g, 0, false
	}
	index = uint8(min(1, len(all)-1))
	return all[index].gid, index, true
}

func (k *cmCommand) roceBindIP() {
	id := k.idAt(36)
	if id == nil {
		return
	}
	a, ok := abi.ParseAddr(k.Body[min(8, len(k.Body)):])
	if !ok {
		k.Return(0, unix.EAFNOSUPPORT)
		return
	}
	id.mu.Lock()
	e := id.bindRoCELocked(a)
	id.mu.Unlock()
	k.finish(e)
}

// The range of ports for programs that choose no port.
const (
	firstFreePort = 32768
	freePorts     = 28232
)

// bindRoCELocked reserves a port. It opens no socket, because the port spaces of rdma_cm are
// separate from TCP and UDP.
func (id *cmID) bindRoCELocked(a netip.AddrPort) unix.Errno {
	if id.state != cmIdle || id.destroyed {
		return unix.EINVAL
	}
	var dev *device
	if ip := a.Addr(); !ip.IsUnspecified() {
		if dev = id.s.roceFor(id.ps, ip); dev == nil {
			return unix.ENODEV
		}
		if _, _, ok := dev.gidOf(ip); !ok {
			return unix.ENODEV
		}
	}
	b := &binding{space: id.ps, at: a, ownFamily: a.Addr().Is4() || id.v6only, reuse: id.reuse}
	e := unix.EADDRINUSE
	if a.Port() != 0 {
		e = id.s.ports.add(b)
	} else {
		for range freePorts {
			b.at = netip.AddrPortFrom(a.Addr(), firstFreePort+uint16(rand.IntN(freePorts)))
			if e = id.s.ports.add(b); e == 0 {
				break
			}
		}
	}
	if e != 0 {
		return e
	}
	id.bound, id.src, id.dev, id.state = b, b.at, dev, cmBound
	return 0
}

func (k *cmCommand) roceResolveIP() {
	id := k.idAt(56)
	if id == nil {
		return
	}
	src, hasSrc := abi.ParseAddr(k.Body)
	dst, ok := abi.ParseAddr(k.Body[min(28, len(k.Body)):])
	if !ok {
		k.Return(0, unix.EAFNOSUPPORT)
		return
	}
	id.mu.Lock()
	e := unix.Errno(0)
	if id.state == cmIdle && hasSrc && (!src.Addr().IsUnspecified() || src.Port() != 0) {
		e = id.bindRoCELocked(src)
	}
	if e == 0 && (id.state != cmIdle && id.state != cmBound || id.state == cmBound && id.src.Addr().Is4() != dst.Addr().Is4()) {
		e = unix.EINVAL
	}
	if e != 0 {
		id.mu.Unlock()
		k.Return(0, e)
		return
	}
	e = id.resolveRoCELocked(dst)
	id.mu.Unlock()
	k.Return(k.count, 0)
	if e != 0 {
		id.tell(abi.EvAddrError, e, abi.ConnParam{})
		return
	}
	id.tell(abi.EvAddrResolved, 0, abi.ConnParam{})
}

// resolveRoCELocked determines the local address and the device for a destination.
func (id *cmID) resolveRoCELocked(dst netip.AddrPort) unix.Errno {
	from := id.src.Addr()
	if !from.IsValid() || from.IsUnspecified() {
		var err error
		if from, err = sourceFor(dst); err != nil && dst.Addr().IsMulticast() {
			// Without a route to a group, any address of the device will do.
			if d := id.s.roceFor(id.ps, dst.Addr()); d != nil {
				if all := d.gids.entries(); len(all) > 1 {
					from, err = netip.AddrFrom16(all[1].gid).Unmap(), nil
				}
			}
		}
		if err != nil {
			return errnoOf(err)
		}
	}
	dev := id.s.roceFor(id.ps, from)
	if dev == nil {
		return unix.ENODEV
	}
	if _, _, ok := dev.gidOf(from); !ok {
		return unix.ENODEV
	}
	if id.state == cmIdle {
		if e := id.bindRoCELocked(netip.AddrPortFrom(from, 0)); e != 0 {
			return e
		}
	}
	id.src = netip.AddrPortFrom(from, id.src.Port())
	id.dst, id.dev, id.state = dst, dev, cmAddrResolved
	return 0
}

func (k *cmCommand) roceQueryRoute() {
	id := k.idAt(8)
	if id == nil {
		return
	}
	b := make(abi.Body, abi.QueryRouteLen)
	id.mu.Lock()
	if id.dev != nil {
		putGUID(b, id.dev.found.GUID)
		b.Put8(196, 1)
		b.Put32(200, id.dev.found.Index)
		from, _, _ := id.dev.gidOf(id.src.Addr())
		abi.PutPath(b, from, id.dgidLocked(), id.dev.mtu)
		if id.state >= cmRouteResolved && id.state != cmListening {
			b.Put32(192, 1) // number of paths
		}
	}
	abi.PutAddr(b[136:164], id.src)
	abi.PutAddr(b[164:192], id.dst)
	id.mu.Unlock()
	k.answer(k.Body.U64(0), b[:min(k.Out, len(b))])
}

// dgidLocked returns the GID of the other end, or zeros if there is none.
func (id *cmID) dgidLocked() (g [16]byte) {
	if !id.dst.IsValid() {
		return g
	}
	if id.roce.peerGID != (rxe.GID{}) {
		return id.roce.peerGID
	}
	if own, _, ok := id.dev.gidOf(id.dst.Addr()); ok {
		return own
	}
	return id.dst.Addr().As16()
}

// ahLocked returns the attributes of an address handle for a GID.
func (id *cmID) ahLocked(to [16]byte) abi.Body {
	_, index, _ := id.dev.gidOf(id.src.Addr())
	return abi.MakeAH(to, index)
}

// defaultTimeout is the code of the ACK timeout: 4.096 us * 2^18, about a second.
const defaultTimeout = 18

func (k *cmCommand) roceInitQPAttr() {
	id := k.idAt(8)
	if id == nil {
		return
	}
	m := &id.s.roceCM
	m.mu.Lock()
	id.mu.Lock()
	r := id.roce
	a := abi.RoCEAttr{UD: id.typ == rxe.UD, DestQP: r.remoteQPN, SendPSN: r.remotePSN,
		RecvPSN: r.psn, IRD: r.ird, ORD: r.ord,
		Timeout: defaultTimeout, RetryCount: r.retry, RNRRetry: r.rnr}
	if id.timeout != 0 {
		a.Timeout = id.timeout
	}
	bound := id.dev != nil
	if bound {
		a.AH, a.MTU = id.ahLocked(id.dgidLocked()), id.dev.mtu
	}
	id.mu.Unlock()
	m.mu.Unlock()
	b, ok := a.For(abi.State(k.Body.U32(12)))
	if !ok || !bound {
		k.Return(0, unix.EINVAL)
		return
	}
	k.answer(k.Body.U64(0), b)
}
