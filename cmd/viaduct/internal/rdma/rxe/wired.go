package rxe

import "viaduct/cmd/viaduct/internal/rdma/abi"

// joinWire opens, starts or closes links after a change of attributes. changing is locked.
func (q *QP) joinWire(old, a *Attributes) {
	l := q.link.Load()
	switch {
	case a.State == abi.RTR && old.State != abi.RTR:
		q.leaveWire()
		if q.typ == UD {
			q.listen(a)
		} else if !q.fabric.reaches(a.Path.DGID, a.DestQP) && onWire(a.Path.DGID.addr()) {
			if err := q.connect(a); err != nil {
				q.explain("queue pair %d: RoCEv2: %v", q.num, err)
				q.tell("RoCEv2 to " + a.Path.DGID.String() + ": " + err.Error())
			}
		}
	case l != nil && a.State == abi.RTS && old.State == abi.RTR:
		l.start(a)
	}
	if l = q.link.Load(); l != nil && (a.Access != old.Access || a.MinRNR != old.MinRNR) {
		l.pair.SetAccess(a.rights(), a.MinRNR)
	}
	if links := q.udLinks.Load(); links != nil && a.QKey != old.QKey {
		for _, l := range *links {
			l.pair.SetQKey(a.QKey)
		}
	}
}

// leaveWire closes the links of the queue pair. Nothing completes after leaveWire returns.
func (q *QP) leaveWire() {
	if l := q.link.Swap(nil); l != nil {
		l.end()
	}
	if links := q.udLinks.Swap(nil); links != nil {
		for _, l := range *links {
			l.pair.Close()
		}
	}
}
