package fabric

import (
	"encoding/binary"

	"viaduct/internal/fc"
)

// Switches exchange their state by a control protocol of our own, in class F frames of TYPE SW_ILS
// with a vendor specific command. The state of a switch is divided into items: the switch's
// neighbours, and a directory record per N_Port. Each item has a sequence number, increased by the
// item's origin. A switch stores an item newer than the stored item, and passes the new item on to
// all other neighbours. Domains are reached by the shortest path over adjacencies confirmed by both
// sides.
const ilsVendor = 0x70

type itemKind uint8

const (
	itemHello  itemKind = 1 // announces a switch to the other end of its link; not passed on
	itemLinks  itemKind = 2 // the neighbours of the origin
	itemRecord itemKind = 3 // a directory record
)

const (
	itemLen   = 28
	recordLen = 8 + 8 + 16 + 16 + 32
	// maxItems is the maximum number of items of other switches a switch stores.
	maxItems = 65536
)

type itemKey struct {
	origin fc.WWN
	kind   itemKind
	id     fc.Addr
}

// An item is a piece of a switch's state.
//
//	 0 | 0x70 | kind | flags (1: withdrawn) | domain |
//	 4 |               origin (8)                    |
//	12 |           sequence number (4)               |
//	16 |  0   |            address (3)               |
//	20 |            fabric name (8)                  |
//	28 |  body
type item struct {
	itemKey
	gone   bool
	domain uint8
	seq    uint32
	fabric fc.WWN
	body   []byte
}

func (i *item) append(b []byte) []byte {
	var flags byte
	if i.gone {
		flags = 1
	}
	b = append(b, ilsVendor, byte(i.kind), flags, i.domain)
	b = binary.BigEndian.AppendUint64(b, uint64(i.origin))
	b = binary.BigEndian.AppendUint32(b, i.seq)
	b = append(b, 0, byte(i.id>>16), byte(i.id>>8), byte(i.id))
	b = binary.BigEndian.AppendUint64(b, uint64(i.fabric))
	return append(b, i.body...)
}

func parseItem(b []byte) (i item, ok bool) {
	if len(b) < itemLen || b[0] != ilsVendor {
		return i, false
	}
	i.kind, i.gone, i.domain = itemKind(b[1]), b[2]&1 != 0, b[3]
	i.origin = fc.WWN(binary.BigEndian.Uint64(b[4:]))
	i.seq = binary.BigEndian.Uint32(b[12:])
	i.id = fc.GetAddr(b[17:])
	i.fabric = fc.WWN(binary.BigEndian.Uint64(b[20:]))
	i.body = b[itemLen:]
	switch {
	case i.origin == 0 || i.domain == 0 || i.domain >= 240:
		return i, false
	case i.kind == itemLinks && len(i.body)%8 != 0, i.kind == itemRecord && !i.gone && len(i.body) < recordLen:
		return i, false
	case i.kind == itemRecord && i.id.Domain() != i.domain:
		return i, false // the record is for another domain than that of its switch
	}
	return i, i.kind >= itemHello && i.kind <= itemRecord
}

type linkState struct {
	sw     *Switch
	seq    uint32
	items  map[itemKey]*item
	routes [256]*SwitchPort
	owners [256]fc.WWN // name of the switch of each reachable domain
}

func (s *linkState) init(sw *Switch) {
	s.sw, s.items, s.seq = sw, map[itemKey]*item{}, sw.cfg.Epoch
}

// route returns the port leading to a domain, or nil if the domain is unreachable.
func (s *linkState) route(domain uint8) *SwitchPort { return s.routes[domain] }

func (s *linkState) reachable(domain uint8) bool {
	return domain == s.sw.cfg.Domain || s.routes[domain] != nil
}

func (s *linkState) send(p *SwitchPort, i *item) {
	sw := s.sw
	sw.buf = i.append(sw.buf[:0])
	tx := sw.request(fc.AddrFabricController, fc.AddrFabricController, sw.buf)
	tx.RCtl, tx.Type, tx.SOF = fc.RCtlUnsolControl, fc.TypeSWILS, fc.SOFf
	tx.FCtl = fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq
	p.out.Send(tx)
}

func (s *linkState) hello(now fc.Time, p *SwitchPort) {
	s.send(p, &item{itemKey: itemKey{s.sw.cfg.Name, itemHello, 0}, domain: s.sw.cfg.Domain,
		fabric: s.sw.cfg.FabricName})
}

// receive handles an item from a neighbour.
func (s *linkState) receive(now fc.Time, p *SwitchPort, f *fc.Frame) {
	sw := s.sw
	i, ok := parseItem(f.Payload)
	if !ok || len(p.logins) > 0 || f.Type != fc.TypeSWILS {
		sw.stats.Malformed++
		return
	}
	if i.kind == itemHello {
		s.greeted(now, p, &i)
		return
	}
	if p.neighbor == 0 {
		sw.stats.Malformed++
		return
	}
	if i.origin == sw.cfg.Name {
		s.former(now, &i)
		return
	}
	old := s.items[i.itemKey]
	if old != nil && int32(i.seq-old.seq) <= 0 || len(s.items) >= maxItems && old == nil {
		return
	}
	i.body = append([]byte{}, i.body...)
	s.items[i.itemKey] = &i
	sw.stats.StateUpdates++
	s.flood(&i, p)
	switch i.kind {
	case itemLinks:
		s.compute(now)
	case itemRecord:
		s.takeRecord(now, &i)
	}
}

func (s *linkState) flood(i *item, from *SwitchPort) {
	for _, p := range s.sw.isls {
		if p != from && p.up && p.neighbor != 0 {
			s.send(p, i)
		}
	}
}

// greeted handles a hello: p becomes an inter-switch link, unless the neighbour has this switch's
// domain or is this switch itself.
func (s *linkState) greeted(now fc.Time, p *SwitchPort, i *item) {
	sw := s.sw
	if i.domain == sw.cfg.Domain || i.origin == sw.cfg.Name {
		sw.stats.DomainClash++
		return
	}
	known := p.neighbor == i.origin
	p.neighbor, p.domain = i.origin, i.domain
	if !p.isl {
		p.isl = true
		s.hello(now, p)
	}
	if !contains2(sw.isls, p) {
		sw.isls = append(sw.isls, p)
	}
	if known {
		return
	}
	s.hello(now, p)
	for _, it := range s.items {
		s.send(p, it)
	}
	s.originateLinks(now)
	for id := range sw.dir.byID {
		if id.Domain() == sw.cfg.Domain {
			s.announce(now, id)
		}
	}
}

func contains2(s []*SwitchPort, p *SwitchPort) bool {
	for _, o := range s {
		if o == p {
			return true
		}
	}
	return false
}

// lost removes the inter-switch link of p from the state. It has no effect if p is no inter-switch
// link.
func (s *linkState) lost(now fc.Time, p *SwitchPort) {
	if p.neighbor == 0 {
		return
	}
	p.neighbor = 0
	for k, o := range s.sw.isls {
		if o == p {
			s.sw.isls = append(s.sw.isls[:k], s.sw.isls[k+1:]...)
			break
		}
	}
	s.originateLinks(now)
}

func (s *linkState) publish(now fc.Time, i *item) {
	s.seq++
	i.origin, i.domain, i.fabric, i.seq = s.sw.cfg.Name, s.sw.cfg.Domain, s.sw.cfg.FabricName, s.seq
	s.items[i.itemKey] = i
	s.flood(i, nil)
}

func (s *linkState) originateLinks(now fc.Time) {
	i := &item{itemKey: itemKey{kind: itemLinks}}
	for _, p := range s.sw.isls {
		i.body = binary.BigEndian.AppendUint64(i.body, uint64(p.neighbor))
	}
	s.publish(now, i)
	s.compute(now)
}

// former handles an item sent by an earlier run of this switch and still stored by other switches.
// former replaces the item by the current item, or withdraws the item.
func (s *linkState) former(now fc.Time, i *item) {
	if cur := s.items[i.itemKey]; cur != nil && int32(i.seq-cur.seq) <= 0 {
		return // the item is from this run, or older than its replacement
	}
	if int32(i.seq-s.seq) > 0 {
		s.seq = i.seq
	}
	switch {
	case i.kind == itemLinks:
		s.originateLinks(now)
	case !i.gone:
		s.announce(now, i.id)
	}
}

// announce sends the record of a local port, or the record's removal, to other switches.
func (s *linkState) announce(now fc.Time, id fc.Addr) {
	r := s.sw.dir.byID[id]
	if r == nil {
		s.withdraw(now, id)
		return
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(r.port))
	b = binary.BigEndian.AppendUint64(b, uint64(r.node))
	b = append(b, r.portIP[:]...)
	b = append(b, r.nodeIP[:]...)
	b = append(b, r.types[:]...)
	s.publish(now, &item{itemKey: itemKey{kind: itemRecord, id: id}, body: b})
}

func (s *linkState) withdraw(now fc.Time, id fc.Addr) {
	s.publish(now, &item{itemKey: itemKey{kind: itemRecord, id: id}, gone: true})
}

func (s *linkState) takeRecord(now fc.Time, i *item) {
	if i.domain == s.sw.cfg.Domain {
		return
	}
	d := &s.sw.dir
	if i.gone {
		d.remove(i.id)
	} else {
		r := d.ensure(i.id)
		r.port, r.node = getName(i.body), getName(i.body[8:])
		copy(r.portIP[:], i.body[16:])
		copy(r.nodeIP[:], i.body[32:])
		copy(r.types[:], i.body[48:])
	}
	s.sw.changed(now, i.id, fc.RSCNPort)
}

// compute finds the shortest path to every domain, and notifies local ports of added and removed
// domains.
func (s *linkState) compute(now fc.Time) {
	neighbors := func(w fc.WWN) []fc.WWN {
		it := s.items[itemKey{w, itemLinks, 0}]
		if it == nil {
			return nil
		}
		var out []fc.WWN
		for o := 0; o+8 <= len(it.body); o += 8 {
			out = append(out, getName(it.body[o:]))
		}
		return out
	}
	confirmed := func(a, b fc.WWN) bool {
		for _, w := range neighbors(b) {
			if w == a {
				return true
			}
		}
		return false
	}
	old, owners := s.routes, s.owners
	s.routes, s.owners = [256]*SwitchPort{}, [256]fc.WWN{}
	type hop struct {
		w   fc.WWN
		via *SwitchPort
	}
	seen := map[fc.WWN]bool{s.sw.cfg.Name: true}
	var queue []hop
	for _, p := range s.sw.isls {
		if p.up && p.neighbor != 0 && !seen[p.neighbor] && confirmed(s.sw.cfg.Name, p.neighbor) {
			seen[p.neighbor] = true
			queue = append(queue, hop{p.neighbor, p})
		}
	}
	for len(queue) > 0 {
		h := queue[0]
		queue = queue[1:]
		it := s.items[itemKey{h.w, itemLinks, 0}]
		if it.domain != s.sw.cfg.Domain && s.routes[it.domain] == nil {
			s.routes[it.domain], s.owners[it.domain] = h.via, h.w
		}
		for _, w := range neighbors(h.w) {
			if !seen[w] && confirmed(h.w, w) {
				seen[w] = true
				queue = append(queue, hop{w, h.via})
			}
		}
	}
	for d := range s.routes {
		if owners[d] != 0 && owners[d] != s.owners[d] {
			s.forget(owners[d])
		}
		if (s.routes[d] == nil) != (old[d] == nil) {
			s.sw.changed(now, fc.DomainAddr(uint8(d), 0, 0), fc.RSCNDomain)
		}
	}
}

// forget drops the items of an unreachable switch. When the switch can be reached again, its
// neighbour sends all items again. The old items must be dropped, because a new run of the switch
// may have another name, and other ports at the same addresses.
func (s *linkState) forget(origin fc.WWN) {
	for k := range s.items {
		if k.origin == origin {
			delete(s.items, k)
			if k.kind == itemRecord {
				s.sw.dir.remove(k.id)
			}
		}
	}
}
