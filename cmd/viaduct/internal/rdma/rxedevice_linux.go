//go:build linux && (amd64 || arm64)

package rdma

import (
	"net"
	"net/netip"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
)

// roce imitates the kernel's software RoCE.
var roce = &personality{
	driver:      abi.RXE,
	kind:        "soft RoCE",
	desc:        "Software RoCE",
	gids:        roceGIDs,
	queryDevice: queryRXEDevice,
	queryPort:   queryRXEPort,
	handlers:    rxeHandlers,
	files: func(*device) []sysFile {
		return []sysFile{{"ports/1/rate", "10 Gb/sec (4X)"}}
	},
}

// roceGIDs returns the GID table of a RoCE port: the link-local address first, as in the kernel,
// then the IPv4 and then the IPv6 addresses of the interfaces. Programs use the first IPv4 address,
// or the last address. Therefore loopback addresses are left out, unless there are no others or the
// device was given them.
func roceGIDs(d *device) (all []gidEntry) {
	add := func(a netip.Addr, ndev string) {
		g := gidEntry{a.As16(), gidRoCEv2, ndev}
		for _, x := range all {
			if x.gid == g.gid {
				return
			}
		}
		all = append(all, g)
	}
	linkLocal := [16]byte{0: 0xfe, 1: 0x80}
	putGUID(linkLocal[8:], d.found.GUID)
	add(netip.AddrFrom16(linkLocal), d.found.NetName)
	if len(d.addrs) > 0 {
		for _, a := range d.addrs {
			add(a, d.found.NetName)
		}
		return all
	}
	addrs := interfaceAddrs()
	for _, loopback := range []bool{false, true} {
		for _, is4 := range []bool{true, false} {
			for _, a := range addrs {
				if a.loopback == loopback && a.addr.Is4() == is4 && !(loopback && len(all) > 1) {
					add(a.addr, a.ndev)
				}
			}
		}
	}
	return all
}

// An interfaceAddr is an address of a network interface that is up.
type interfaceAddr struct {
	addr     netip.Addr
	ndev     string
	loopback bool
}

func interfaceAddrs() (all []interfaceAddr) {
	ifs, _ := net.Interfaces()
	for i := range ifs {
		if ifs[i].Flags&net.FlagUp == 0 {
			continue
		}
		addrs, _ := ifs[i].Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil {
				all = append(all, interfaceAddr{p.Addr().Unmap().WithZone(""), ifs[i].Name,
					ifs[i].Flags&net.FlagLoopback != 0})
			}
		}
	}
	return all
}

// setGIDs copies the GID table to the port.
func (d *device) setGIDs() {
	all := d.gids.entries()
	gids := make([]rxe.GID, len(all))
	for i, g := range all {
		gids[i] = g.gid
	}
	d.port.SetGIDs(gids)
}

// Limits that only RoCE devices have. They are the limits of the kernel's rxe.
const (
	maxAH     = 32 << 10
	maxMW     = 64 << 10
	maxGroups = 8 << 10
)

// queryRXEDevice returns the response of query_device.
func queryRXEDevice(d *device) abi.Body {
	b := make(abi.Body, abi.QueryDeviceLen)
	putGUID(b[8:16], d.found.GUID)
	putGUID(b[16:24], d.found.GUID)
	b.Put64(24, maxMRSize)
	b.Put64(32, 0xfffff000) // sizes of pages
	const (
		badPKeyCounter  = 1 << 1
		badQKeyCounter  = 1 << 2
		changePHYPort   = 1 << 5
		portActiveEvent = 1 << 10
		sysImageGUID    = 1 << 11
		rcRNRNAK        = 1 << 12
		srqResize       = 1 << 13
		memMgt          = 1 << 21
		windowType2B    = 1 << 24

		caps      = badPKeyCounter | badQKeyCounter | changePHYPort | portActiveEvent | sysImageGUID | rcRNRNAK | srqResize | memMgt | windowType2B
		atomicHCA = 1
	)
	for i, v := range []uint32{
		0xffffff, 0, 0, maxQP, rxe.MaxWR, caps, rxe.MaxSGE, rxe.MaxSGE, maxCQ, rxe.MaxCQE, maxMR, maxPD,
		rxe.MaxReads, 0, maxQP * rxe.MaxReads, rxe.MaxReads, 0, atomicHCA, 0, 0, maxMW, 0, 0,
		maxGroups, 56, maxGroups * 56, maxAH,
		0, 0, maxSRQ, rxe.MaxWR, rxe.MaxSRQSGE,
	} {
		b.Put32(40+4*i, v)
	}
	b.Put16(168, 1) // pkeys
	b.Put8(170, 15) // local ACK delay
	b.Put8(171, 1)  // ports
	return b
}

// Codes of path MTUs: a payload of 128 bytes shifted left by the code.
const (
	mtu256  = 1
	mtu4096 = 5
)

// pathMTU returns the code of the largest packet the interfaces of all addresses can carry. It
// leaves the same room for headers as the kernel's rxe.
func pathMTU(gids []gidEntry) uint8 {
	const headers = 80
	code := uint8(mtu4096)
	for _, g := range gids {
		n, err := net.InterfaceByName(g.ndev)
		if err != nil {
			continue
		}
		for code > mtu256 && n.MTU-headers < 128<<code {
			code--
		}
	}
	return code
}

// queryRXEPort returns the response of query_port.
func queryRXEPort(d *device) abi.Body {
	const (
		capCM       = 1 << 16
		active      = 4
		width1X     = 1
		speed10     = 32
		linkUp      = 5
		ethernet    = 2
		virtualLane = 1
	)
	b := make(abi.Body, abi.QueryPortLen)
	b.Put32(0, capCM)
	b.Put32(4, 1<<30) // bytes of a message
	b.Put32(16, uint32(len(d.gids.entries())))
	b.Put16(20, 1) // pkeys
	for _, v := range [...]struct {
		at int
		v  uint8
	}{{26, active}, {27, mtu4096}, {28, d.mtu}, {30, virtualLane}, {34, width1X << 1}, {35, speed10}, {36, linkUp}, {37, ethernet}} {
		b.Put8(v.at, v.v)
	}
	return b
}
