package fabric

import (
	"encoding/binary"
	"slices"

	"viaduct/internal/fc"
)

// A record has the directory's entries for one N_Port.
type record struct {
	id         fc.Addr
	port, node fc.WWN
	types      fc.FC4Map
	portIP     [16]byte
	nodeIP     [16]byte
}

// A directory is the name server. It stores records by address. Other switches send the records of
// their domains. [FCVI-7.6-5]
type directory struct {
	byID map[fc.Addr]*record
}

func (d *directory) init() { d.byID = map[fc.Addr]*record{} }

// remove removes the record of id. It returns false if there was none.
func (d *directory) remove(id fc.Addr) bool {
	_, ok := d.byID[id]
	delete(d.byID, id)
	return ok
}

// An nsHandler handles a command. The function body returns the body of the accept, or the reason
// for a refusal.
type nsHandler struct {
	min  int  // minimum length of the body in bytes
	own  bool // the body starts with the requester's ID
	body func(d *directory, q *query) ([]byte, refusal)
}

// A refusal is the reason for rejecting a request. The zero value means an accepted request.
type refusal struct{ reason, explanation uint8 }

type query struct {
	cmd     fc.CTCmd
	from    fc.Addr
	body    []byte
	id      fc.Addr // address in the first word of the body
	rec     *record // record of id; in registrations, of the requester
	live    func(domain uint8) bool
	changed bool
}

// register returns the handler of a registration whose body starts with the requester's ID.
func register(minLen int, set func(r *record, body []byte)) nsHandler {
	return nsHandler{min: 4 + minLen, own: true, body: func(d *directory, q *query) ([]byte, refusal) {
		set(d.ensure(q.id), q.body[4:])
		q.changed = q.cmd == fc.NSRFTID
		return nil, refusal{}
	}}
}

// registerNode returns the handler of a registration whose body starts with the requester's
// Node_Name. The requester must have registered the name before.
func registerNode(minLen int, set func(q *query, r *record, body []byte)) nsHandler {
	return nsHandler{min: 8 + minLen, body: func(d *directory, q *query) ([]byte, refusal) {
		r := d.byID[q.from]
		if r == nil || r.node != getName(q.body) {
			return nil, refusal{fc.CTRsnUnable, fc.CTExpNodeName}
		}
		set(q, r, q.body[8:])
		return nil, refusal{}
	}}
}

// lookup returns the handler of a query whose body starts with an ID.
func lookup(explanation uint8, get func(r *record) []byte) nsHandler {
	return nsHandler{min: 4, body: func(d *directory, q *query) ([]byte, refusal) {
		if q.rec == nil || !q.live(q.id.Domain()) {
			return nil, refusal{fc.CTRsnUnable, fc.CTExpPortID}
		}
		b := get(q.rec)
		if b == nil {
			return nil, refusal{fc.CTRsnUnable, explanation}
		}
		return b, refusal{}
	}}
}

// list returns the handler of a query whose answer is a list of IDs.
func list(minLen int, explanation uint8, match func(r *record, body []byte) bool) nsHandler {
	return nsHandler{min: minLen, body: func(d *directory, q *query) ([]byte, refusal) {
		var ids []fc.Addr
		for id, r := range d.byID {
			if q.live(id.Domain()) && match(r, q.body) {
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			return nil, refusal{fc.CTRsnUnable, explanation}
		}
		slices.Sort(ids)
		b := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			b = append(b, 0, byte(id>>16), byte(id>>8), byte(id))
		}
		b[len(b)-4] = 0x80
		return b, refusal{}
	}}
}

func nonZeroIP(ip [16]byte) []byte {
	if ip == ([16]byte{}) {
		return nil
	}
	return ip[:]
}

func name64(w fc.WWN) []byte {
	if w == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(w))
}

func getName(b []byte) fc.WWN { return fc.WWN(binary.BigEndian.Uint64(b)) }

// nsHandlers has the handlers of all supported commands of the name server. [FCVI-7.6-5]
var nsHandlers = map[fc.CTCmd]nsHandler{
	fc.NSRPNID:  register(8, func(r *record, b []byte) { r.port = getName(b) }),
	fc.NSRNNID:  register(8, func(r *record, b []byte) { r.node = getName(b) }),
	fc.NSRFTID:  register(32, func(r *record, b []byte) { copy(r.types[:], b) }),
	fc.NSRIPPID: register(16, func(r *record, b []byte) { copy(r.portIP[:], b) }),
	fc.NSRFFID:  register(0, unused),
	fc.NSRCSID:  register(0, unused),
	fc.NSRSPNID: register(0, unused),
	fc.NSRPTID:  register(0, unused),
	fc.NSRIPNN: registerNode(16, func(q *query, r *record, b []byte) {
		copy(r.nodeIP[:], b)
		q.changed = true
	}),
	fc.NSRSNNNN: registerNode(1, func(*query, *record, []byte) {}),
	fc.NSDAID: {min: 4, own: true, body: func(d *directory, q *query) ([]byte, refusal) {
		q.changed = d.remove(q.id)
		return nil, refusal{}
	}},
	fc.NSGPNID: lookup(fc.CTExpPortName, func(r *record) []byte { return name64(r.port) }),
	fc.NSGNNID: lookup(fc.CTExpNodeName, func(r *record) []byte { return name64(r.node) }),
	fc.NSGFTID: lookup(fc.CTExpTypes, func(r *record) []byte {
		if r.types == (fc.FC4Map{}) {
			return nil
		}
		return r.types[:]
	}),
	fc.NSGIPPID: lookup(fc.CTExpPortIP, func(r *record) []byte { return nonZeroIP(r.portIP) }),
	fc.NSGIDPN: {min: 8, body: func(d *directory, q *query) ([]byte, refusal) {
		want := getName(q.body)
		for id, r := range d.byID {
			if r.port == want && want != 0 && q.live(id.Domain()) {
				return fc.NSBody{}.ID(id), refusal{}
			}
		}
		return nil, refusal{fc.CTRsnUnable, fc.CTExpPortName}
	}},
	fc.NSGIDNN: list(8, fc.CTExpNodeName,
		func(r *record, b []byte) bool { return r.node != 0 && r.node == getName(b) }),
	fc.NSGNNIP: {min: 16, body: func(d *directory, q *query) ([]byte, refusal) {
		for id, r := range d.byID {
			if r.node != 0 && r.nodeIP == [16]byte(q.body) && r.nodeIP != ([16]byte{}) && q.live(id.Domain()) {
				return name64(r.node), refusal{}
			}
		}
		return nil, refusal{fc.CTRsnUnable, fc.CTExpNodeIP}
	}},
	fc.NSGIDFT: list(4, fc.CTExpTypes, func(r *record, b []byte) bool {
		return r.types.Has(fc.Type(b[3])) && (b[1] == 0 || r.id.Domain() == b[1]) && (b[2] == 0 || r.id.Area() == b[2])
	}),
	fc.NSGIDIPP: list(16, fc.CTExpPortIP, func(r *record, b []byte) bool {
		return r.portIP == [16]byte(b) && r.portIP != ([16]byte{})
	}),
}

// unused ignores a registration never returned by a query.
func unused(*record, []byte) {}

func (d *directory) ensure(id fc.Addr) *record {
	r := d.byID[id]
	if r == nil {
		r = &record{id: id}
		d.byID[id] = r
	}
	return r
}

// request answers a Common Transport request of the port at from. live reports whether a domain is
// reachable. The second result is the address of a record whose change must be announced, or 0. The
// answer is empty if the request is shorter than a Common Transport header.
func (d *directory) request(from fc.Addr, payload []byte, live func(uint8) bool) ([]byte, fc.Addr) {
	h, n, err := fc.ParseCT(payload)
	if err != nil {
		return nil, 0
	}
	answer := fc.CTHeader{Revision: fc.CTRevision, GSType: h.GSType, GSSubtype: h.GSSubtype, Cmd: fc.CTReject}
	reject := func(r refusal) ([]byte, fc.Addr) { // [FCFS-2.11-2]
		answer.Reason, answer.Explanation = r.reason, r.explanation
		return answer.Append(nil), 0
	}
	handler, known := nsHandlers[h.Cmd]
	q := query{cmd: h.Cmd, from: from, body: payload[n:], live: live}
	switch {
	case h.Revision != fc.CTRevision:
		return reject(refusal{reason: fc.CTRsnVersion})
	case h.GSType != fc.GSTypeDirSvc || h.GSSubtype != fc.GSSubtypeNames:
		return reject(refusal{reason: fc.CTRsnUnsupported})
	case !known:
		return reject(refusal{reason: fc.CTRsnUnsupported})
	case len(q.body) < handler.min:
		return reject(refusal{reason: fc.CTRsnLogical})
	}
	if len(q.body) >= 4 {
		q.id = fc.GetAddr(q.body[1:])
		q.rec = d.byID[q.id]
	}
	if handler.own && q.id != from { // a port may register only itself
		return reject(refusal{fc.CTRsnUnable, fc.CTExpPortID})
	}
	body, refused := handler.body(d, &q)
	if refused != (refusal{}) {
		return reject(refused)
	}
	answer.Cmd = fc.CTAccept
	changed := fc.Addr(0)
	if q.changed {
		changed = from
	}
	// The part of the answer beyond the requester's limit is omitted and counted as residual.
	if room := int(h.Size) * 4; h.Size != 0 && len(body) > room {
		answer.Size = uint16((len(body) - room) / 4)
		body = body[:room]
	}
	return append(answer.Append(nil), body...), changed
}
