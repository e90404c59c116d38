package conform

import (
	"slices"

	"viaduct/internal/wire/ib"
)

// A queue pair is tested as a responder in both roles. The roles only determine who dials to
// exchange queue pairs.
var (
	rocePassive = roceRole(Passive)
	roceActive  = roceRole(Active)
)

func roceRole(role Role) (cs []Case) {
	for _, c := range slices.Concat(roceNumbers, roceOpcodes, roceFields, roceLengths, roceMemoryCases, roceReads, roceAtomics, roceDatagrams) {
		c.Proto, c.Role = "roce", role
		cs = append(cs, c)
	}
	return cs
}

// invalidAfter returns a case with the packets bad after the packets good. The peer must answer the
// first of the bad packets with the NAK for an invalid request.
func invalidAfter(name, row, text string, good, bad func(e *roceEnd) []ib.Packet) Case {
	return Case{Name: "roce/" + name, Rows: list(row, "ROCE-OP-13"), Text: text, run: func(t *T) {
		e := t.startRoCE()
		if good != nil {
			for _, p := range good(e) {
				p.AckReq = false
				e.sendNext(p)
			}
		}
		for i, p := range bad(e) {
			p.PSN = e.psn.Add(i)
			e.send(p)
		}
		e.refused(row, "it: "+text, e.psn, ib.NAKInvalidRequest)
	}}
}

// ignored returns a case with a packet made invalid by change. The peer must drop the packet
// without an answer, and then execute a valid packet with the same number.
func ignored(name, row, text string, change func(e *roceEnd, b []byte)) Case {
	return Case{Name: "roce/" + name, Rows: list(row), Text: text, run: func(t *T) {
		e := t.startRoCE()
		p := e.request(ib.SendOnly, pattern(16))
		b := p.Append(nil)
		change(e, b)
		e.raw(b)
		e.silent(row, "it: "+text)
		e.alive(row, "it: "+text)
	}}
}
