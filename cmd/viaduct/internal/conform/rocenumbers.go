package conform

import "viaduct/internal/wire/ib"

// roceNumbers tests packet sequence numbers and acknowledgements.
var roceNumbers = []Case{
	{Name: "roce/send", Rows: list("ROCE-RESP-14", "ROCE-RESP-13", "ROCE-OP-5", "ROCE-BTH-1", "ROCE-ICRC-1"), Text: "a Send of one packet is acknowledged by its number, with the count of messages",
		run: func(t *T) {
			e := t.startRoCE()
			for range 3 {
				e.sendNext(e.request(ib.SendOnly, pattern(100)))
				e.acked("ROCE-RESP-14", "a Send")
			}
		}},
	{Name: "roce/long-send", Rows: list("ROCE-RESP-1", "ROCE-OP-12", "ROCE-RESP-14"), Text: "a Send of three packets is acknowledged by the number of the last, and counts as one message",
		run: func(t *T) {
			e := t.startRoCE()
			e.sendNext(e.request(ib.SendFirst, pattern(e.mtu)), e.request(ib.SendMiddle, pattern(e.mtu)),
				e.request(ib.SendLast, pattern(99)))
			e.acked("ROCE-RESP-1", "a Send of three packets")
		}},
	{Name: "roce/number-wrap", Rows: list("ROCE-BTH-5", "ROCE-RESP-1"), Text: "number 0 follows number 0xffffff",
		run: func(t *T) {
			e := t.roce(0xfffffe)
			for range 4 {
				e.sendNext(e.request(ib.SendOnly, pattern(8)))
				e.acked("ROCE-BTH-5", "a Send around number 0")
			}
		}},
	{Name: "roce/ahead", Rows: list("ROCE-RESP-2", "ROCE-OP-13"), Text: "a packet ahead of the expected one is answered with a sequence NAK of the expected number, and executed when it comes in order",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			p.PSN = e.psn.Add(1)
			e.send(p)
			e.refused("ROCE-RESP-2", "a packet that is one ahead", e.psn, ib.NAKSequence)
			e.sendNext(e.request(ib.SendOnly, pattern(8)), e.request(ib.SendOnly, pattern(8)))
			e.acked("ROCE-RESP-2", "the packets in order")
		}},
	{Name: "roce/ahead-again", Rows: list("ROCE-RESP-2"), Text: "a second packet that is ahead gets no second NAK",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			p.PSN = e.psn.Add(1)
			e.send(p)
			e.refused("ROCE-RESP-2", "a packet that is one ahead", e.psn, ib.NAKSequence)
			p.PSN = e.psn.Add(2)
			e.send(p)
			e.silent("ROCE-RESP-2", "a second packet that is ahead")
			e.alive("ROCE-RESP-2", "a gap")
		}},
	{Name: "roce/duplicate-send", Rows: list("ROCE-RESP-3", "ROCE-RESP-13"), Text: "a Send that comes again is acknowledged again, and not executed",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			e.sendNext(p)
			e.acked("ROCE-RESP-14", "a Send")
			e.send(p)
			e.acked("ROCE-RESP-3", "a Send that comes again")
		}},
	{Name: "roce/duplicate-old", Rows: list("ROCE-RESP-3"), Text: "an old Send that comes again is acknowledged with the last number that was executed",
		run: func(t *T) {
			e := t.startRoCE()
			p := e.request(ib.SendOnly, pattern(8))
			e.sendNext(p, e.request(ib.SendOnly, pattern(9)), e.request(ib.SendOnly, pattern(10)))
			e.acked("ROCE-RESP-14", "three Sends")
			e.send(p)
			r := e.response("ROCE-RESP-3", "an old Send that comes again")
			last := e.psn.Add(-1)
			t.check(r.Opcode == ib.Acknowledge && r.AETH.Syndrome.Type() == ib.TypeACK && r.PSN == last, "ROCE-RESP-3",
				"%v, %v, number %d, in answer to an old Send; the last was %d", r.Opcode, r.AETH.Syndrome, r.PSN, last)
		}},
	{Name: "roce/no-receive", Rows: list("ROCE-RESP-9", "ROCE-OP-5"), Text: "a Send that finds no receive is answered with an RNR NAK of its number, and executed when it comes again and finds one",
		run: func(t *T) {
			e := t.startRoCE()
			if e.peer.receives.count == 0 || !e.peer.asks {
				t.hidden("the peer does not announce how many receives it has")
			}
			for range e.peer.receives.count {
				e.sendNext(e.request(ib.SendOnly, nil))
			}
			e.acked("ROCE-RESP-14", "Sends that take all receives")
			e.send(e.request(ib.SendOnly, nil))
			e.refused("ROCE-RESP-9", "a Send without a receive", e.psn, ib.RNR(0))
			t.write(e.ctl, []byte("receive\n"))
			answer, _ := t.roceLine(e.ctl)
			t.check(answer == "posted", t.c.Rows[0], "the peer says %q instead of posting a receive", answer)
			e.alive("ROCE-RESP-9", "an RNR NAK")
		}},
	{Name: "roce/after-error", Rows: list("ROCE-RESP-16"), Text: "after a fatal NAK nothing is executed any more",
		run: func(t *T) {
			e := t.startRoCE()
			e.send(e.request(ib.SendMiddle, pattern(e.mtu)))
			e.refused("ROCE-RESP-7", "a Middle without First", e.psn, ib.NAKInvalidRequest)
			e.send(e.request(ib.SendOnly, pattern(8)))
			if p, ok := e.next(t.g.Quiet); ok { // the NAK may be repeated
				t.check(p.Opcode == ib.Acknowledge && p.AETH.Syndrome.Type() == ib.TypeNAK,
					"ROCE-RESP-16", "%v, %v, in answer to a Send after a fatal NAK", p.Opcode, p.AETH.Syndrome)
			}
		}},
}
