//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/iwarp"
)

// Numbers of the character devices.
const (
	uverbsMajor = 231
	uverbsMinor = 192
)

// Limits of a device. They equal the limits of the kernel's siw, where siw has a limit.
const (
	maxQP     = 64 << 10
	maxQPWR   = 32 << 10
	maxCQ     = 64 << 10
	maxCQE    = 1 << 20
	maxMR     = 1 << 20
	maxPD     = 64 << 10
	maxSRQ    = 64 << 10
	maxSRQWR  = 32 << 10
	maxReads  = 128 // limit of both IRD and ORD
	maxMRSize = 1 << 46
)

// A device is an emulated RDMA device.
type device struct {
	s     *Service
	is    *personality
	found abi.Found
	mac   [6]byte
	gids  gidTable
	addrs []netip.Addr // addresses of the device; empty: all that no other device has
	port  *rxe.Port    // set for a RoCE device
	mtu   uint8        // code of the path MTU of a RoCE device
	iw    *iwarp.Device

	// How many objects exist in all contexts.
	held struct{ pds, mrs, cqs, qps, srqs, ahs, mws atomic.Int32 }

	mu     sync.Mutex
	qps    map[uint32]*queuePair // guarded by mu; by number
	nextQP uint32                // guarded by mu
}

func newDevice(s *Service, i int, d Device) *device {
	v := &device{s: s, is: personalityOf(d.Name), port: new(rxe.Port), addrs: d.Addrs,
		qps: map[uint32]*queuePair{}, nextQP: 1}
	if v.is == roce {
		v.port = s.roce.NewPort()
	}
	v.iw = iwarp.NewDevice(iwarp.DeviceConfig{
		NoCRC:  s.opt.NoCRC,
		Limits: iwarp.Limits{Streams: maxQP, Regions: maxMR, QueueDepth: 2 * maxQPWR, CQEntries: 8 * maxQPWR},
	})
	v.found = abi.Found{
		Driver: v.is.driver, Index: uint32(i), Name: d.Name,
		Uverbs: fmt.Sprintf("uverbs%d", i), UverbsDev: abi.CharDev(uverbsMajor, uint32(uverbsMinor+i)),
	}
	v.findInterface()
	var g uint64
	for _, b := range []byte{v.mac[0] ^ 2, v.mac[1], v.mac[2], 0xff, 0xfe, v.mac[3], v.mac[4], v.mac[5]} {
		g = g<<8 | uint64(b)
	}
	v.found.GUID = g
	v.found.Objects = v.objects
	v.gids.add(v.is.gids(v)...)
	v.setGIDs()
	v.mtu = pathMTU(v.gids.entries())
	return v
}

// findInterface chooses the network interface of the device. A device with addresses gets the
// interface of the first address, if any. Other devices get the first interface that is up, is not
// loopback and has a hardware address, or else the first of all.
func (d *device) findInterface() {
	all, _ := net.Interfaces()
	var best *net.Interface
	for i := range all {
		n := &all[i]
		if len(d.addrs) > 0 {
			as, _ := n.Addrs()
			for _, a := range as {
				if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == d.addrs[0] {
					best = n
				}
			}
			continue
		}
		usable := n.Flags&net.FlagUp != 0 && n.Flags&net.FlagLoopback == 0 && len(n.HardwareAddr) == 6
		if best == nil && usable {
			best = n
		}
	}
	if best == nil && len(all) > 0 && len(d.addrs) == 0 {
		best = &all[0]
	}
	if best != nil {
		d.found.NetIndex, d.found.NetName = uint32(best.Index), best.Name
		copy(d.mac[:], best.HardwareAddr)
	}
	if d.mac == [6]byte{} { // without a hardware address, mac is derived from the name
		h := fnv.New64a()
		h.Write([]byte(d.found.Name))
		v := h.Sum64()
		d.mac = [6]byte{0x02, 0, byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
	}
}

// owns reports whether a is in the device's list of addresses.
func (d *device) owns(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, x := range d.addrs {
		if x == a {
			return true
		}
	}
	return false
}

// deviceFor returns the iWARP device for a local address: the device with the address, or else the
// device without a list of addresses. It returns nil if there is neither.
func (s *Service) deviceFor(a netip.Addr) *device {
	var rest *device
	for _, d := range s.devices {
		if d.is != siw { // only siw devices have iWARP connections
			continue
		}
		if d.owns(a) {
			return d
		}
		if len(d.addrs) == 0 {
			rest = d
		}
	}
	return rest
}

// queryDevice returns the response of query_device.
func (d *device) queryDevice() abi.Body {
	b := make(abi.Body, abi.QueryDeviceLen)
	putGUID(b[8:16], d.found.GUID)
	putGUID(b[16:24], d.found.GUID)
	b.Put64(24, maxMRSize)
	b.Put64(32, 4096)
	const capMemMgt = 1 << 21
	for i, v := range []uint32{
		0x626d74, 1, 0, maxQP, maxQPWR, capMemMgt, abi.MaxSGE, 1, maxCQ, maxCQE, maxMR, maxPD,
		maxReads, 0, maxQP * maxReads, maxReads, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, maxSRQ, maxSRQWR, abi.MaxSGE,
	} {
		b.Put32(40+4*i, v)
	}
	b.Put16(168, 1)
	b.Put8(171, 1)
	return b
}

func putGUID(b []byte, g uint64) {
	for i := range b[:8] {
		b[i] = byte(g >> (56 - 8*i))
	}
}

// queryPort returns the response of query_port.
func (d *device) queryPort() abi.Body {
	const mtu4096 = 5
	b := make(abi.Body, abi.QueryPortLen)
	b.Put32(0, 0x80010000) // as in the kernel: connection management, device management
	b.Put32(4, 0xffffffff)
	b.Put32(16, 1)
	b.Put16(20, 1)
	for _, v := range [...]struct {
		at int
		v  uint8
	}{{26, 4}, {27, mtu4096}, {28, mtu4096}, {34, 2}, {35, 2}, {36, 5}, {37, 2}} {
		b.Put8(v.at, v.v)
	}
	return b
}
