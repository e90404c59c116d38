package fcvi

import (
	"fmt"

	"viaduct/internal/fault"
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A hostKey is the host part of an address in normal form.
type hostKey struct {
	len  uint16
	host [16]byte
}

// A mapping is the port that was found for a host address. It is valid only while the port is
// logged in under the same name. [FCVI-7.4-2]
type mapping struct {
	addr fc.Addr
	name fc.WWN
}

// maxCache is the maximum number of cached addresses.
const maxCache = 4096

func keyOf(a iu.NetAddress) hostKey {
	if ip := a.IP(); ip.IsValid() {
		return hostKey{16, fc.FARPIP(ip)}
	}
	return hostKey{a.HostLen, a.Host}
}

// resolve finds the port with host address a, logs in to the port, and calls done once. resolve
// tries the cache, the static table, the name server and FARP, in that order. While this port is
// offline resolve waits, for FCVI_ULP_TIMEOUT at most. [FCVI-7.4-1]
func (p *port) resolve(now fc.Time, a iu.NetAddress, done func(now fc.Time, r *fc.Remote, err error)) {
	if p.np.State() != fc.Online {
		waiting := true
		limit := p.np.Timers().After(now+p.ulpTimeout(), func(now fc.Time) {
			waiting = false
			done(now, nil, fc.ErrOffline)
		})
		p.onlineFn = append(p.onlineFn, func(now fc.Time) {
			if waiting {
				limit.Stop()
				p.resolve(now, a, done)
			}
		})
		return
	}
	s := &search{p: p, want: a, key: keyOf(a), done: done}
	if m, ok := p.cache[s.key]; ok {
		if r := p.np.Remote(m.addr); r != nil && r.PortName == m.name {
			s.login(now, m.addr, m.name)
			return
		}
		delete(p.cache, s.key)
	}
	if n, ok := a.PortName(); ok {
		s.byName(now, fc.WWN(n))
		return
	}
	ip := a.IP()
	if !ip.IsValid() {
		done(now, nil, fmt.Errorf("%w: no host address", vi.ErrNotReachable))
		return
	}
	if n, ok := p.cfg.static[ip]; ok {
		s.byName(now, fc.WWN(n))
		return
	}
	if p.np.HasDirectory() && !p.cfg.farpOnly {
		s.byDirectory(now)
		return
	}
	s.byFARP(now)
}

// A search is a resolution in progress.
type search struct {
	p    *port
	want iu.NetAddress
	key  hostKey
	done func(now fc.Time, r *fc.Remote, err error)
	ids  []fc.Addr // candidates left
}

// byDirectory asks the name server for the ports with the address. If there are none, byDirectory
// asks for the node with the address. [FCVI-7.6-3]
func (s *search) byDirectory(now fc.Time) {
	s.p.np.Query(now, fc.NSGIDIPP, s.key.host[:], func(now fc.Time, reply []byte, err error) {
		if err == nil {
			err = fc.ParseIDList(reply, func(a fc.Addr) { s.add(a) })
		}
		if err == nil && len(s.ids) > 0 {
			s.candidate(now)
			return
		}
		s.byNode(now)
	})
}

func (s *search) add(a fc.Addr) {
	if len(s.ids) < 64 {
		s.ids = append(s.ids, a)
	}
}

func (s *search) byNode(now fc.Time) {
	np := s.p.np
	np.Query(now, fc.NSGNNIP, s.key.host[:], func(now fc.Time, reply []byte, err error) {
		if err != nil || len(reply) < 8 || getWWN(reply) == np.Node() && s.p.isMine(s.want) {
			// The directory named this node. The node's other ports only make calls and do not have
			// the address. A port of another node with the address answers the FARP itself.
			s.byFARP(now)
			return
		}
		np.Query(now, fc.NSGIDNN, append([]byte{}, reply[:8]...), func(now fc.Time, reply []byte, err error) {
			if err == nil {
				err = fc.ParseIDList(reply, func(a fc.Addr) { s.add(a) })
			}
			if err != nil || len(s.ids) == 0 {
				s.byFARP(now)
				return
			}
			s.candidate(now)
		})
	})
}

// candidate tries the next port the directory lists. The port must have FC-VI among its FC-4 types,
// and log in under the name in the directory. [FCVI-7.6-4]
func (s *search) candidate(now fc.Time) {
	np := s.p.np
	if len(s.ids) == 0 {
		s.fail(now, fc.ErrNoMatch)
		return
	}
	id := s.ids[0]
	s.ids = s.ids[1:]
	np.Query(now, fc.NSGFTID, fc.NSBody{}.ID(id), func(now fc.Time, reply []byte, err error) {
		if err != nil || len(reply) < 32 {
			s.candidate(now)
			return
		}
		if m := fc.FC4Map(reply[:32]); !m.Has(fc.TypeFCVI) && !fault.On("fcvi-types-unchecked") {
			s.candidate(now)
			return
		}
		np.Query(now, fc.NSGPNID, fc.NSBody{}.ID(id), func(now fc.Time, reply []byte, err error) {
			if err != nil || len(reply) < 8 {
				s.candidate(now)
				return
			}
			s.login(now, id, getWWN(reply))
		})
	})
}

func getWWN(b []byte) (w fc.WWN) {
	for _, x := range b[:8] {
		w = w<<8 | fc.WWN(x)
	}
	return w
}

// byFARP sends a FARP broadcast for the address. [FCVI-7.5-10]
func (s *search) byFARP(now fc.Time) {
	s.p.np.FARP(now, fc.FARPMatchIP, fc.FARP{RespIP: s.key.host}, fc.FARPInitPLOGI|fc.FARPInitReply,
		func(now fc.Time, found fc.FARP, err error) {
			if err != nil {
				s.fail(now, err)
				return
			}
			s.login(now, found.RespID, found.RespPortName)
		})
}

// byName searches for a Port_Name, by GID_PN and then by FARP. [FCVI-7.4-1]
func (s *search) byName(now fc.Time, name fc.WWN) {
	if s.p.np.HasDirectory() && !s.p.cfg.farpOnly {
		s.p.np.Query(now, fc.NSGIDPN, fc.NSBody{}.Name(name), func(now fc.Time, reply []byte, err error) {
			if err != nil || len(reply) < 4 {
				s.nameByFARP(now, name)
				return
			}
			s.login(now, fc.GetAddr(reply[1:]), name)
		})
		return
	}
	s.nameByFARP(now, name)
}

func (s *search) nameByFARP(now fc.Time, name fc.WWN) {
	s.p.np.FARP(now, fc.FARPMatchPN, fc.FARP{RespPortName: name}, fc.FARPInitPLOGI|fc.FARPInitReply,
		func(now fc.Time, found fc.FARP, err error) {
			if err != nil {
				s.fail(now, err)
				return
			}
			s.login(now, found.RespID, name)
		})
}

// login logs in to the port at id. A port with another name is logged out again. [FCVI-7.4-3]
func (s *search) login(now fc.Time, id fc.Addr, name fc.WWN) {
	s.p.np.Login(now, id, func(now fc.Time, r *fc.Remote, err error) {
		switch {
		case err != nil && len(s.ids) > 0:
			s.candidate(now)
		case err != nil:
			s.fail(now, err)
		case r.PortName != name && !fault.On("fcvi-name-unchecked"):
			s.p.np.Logout(now, r)
			s.fail(now, fmt.Errorf("%w: port %v has the name %v, expected %v", vi.ErrNotReachable,
				id, r.PortName, name))
		default:
			if len(s.p.cache) >= maxCache {
				clear(s.p.cache)
			}
			s.p.cache[s.key] = mapping{id, name}
			s.done(now, r, nil)
		}
	})
}

func (s *search) fail(now fc.Time, err error) { s.done(now, nil, err) }
