//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/status"
)

// show lists the queue pair in "viaduct ps" from the first possible send until the close of the
// queue pair.
func (q *rxeQP) show() {
	if q.Attributes().State != abi.RTS || q.shown.Swap(true) {
		return
	}
	s := q.x.s
	s.opt.Status.Watch(status.Source{
		Report: q.report,
		Ended:  func() bool { return s.roce.QP(q.Num()) != q.QP },
	})
}

// report returns the status of the queue pair.
func (q *rxeQP) report(counters bool) status.Conn {
	a := q.Attributes()
	c := status.Conn{Transport: "roce", Role: "peer", Local: endpoint(q.x.dev.port.GID(a.Path.SGID), q.Num()),
		Remote: endpoint(a.Path.DGID, a.DestQP),
		Path:   "roce " + q.Type().String(), State: "open", Credits: -1, Queued: q.Posted()}
	if q.Type() == rxe.UD {
		c.Local, c.Remote = endpoint(q.x.dev.port.GID(1), q.Num()), "*"
	}
	if a.State != abi.RTS {
		c.State = a.State.String()
	}
	c.SentBytes, c.ReceivedBytes = q.Passed()
	if counters {
		c.Counters = map[string]uint64{"tx_bytes": c.SentBytes, "rx_bytes": c.ReceivedBytes}
	}
	return c
}

// endpoint formats the address and number of a queue pair.
func endpoint(g rxe.GID, qpn uint32) string { return fmt.Sprintf("%v/qp%d", g, qpn) }

// objectsLocked lists the objects of the context, as "rdma resource" shows them. pds maps the
// protection domains to their handles. The caller holds context.mu.
func (r *rxeContext) objectsLocked(pid uint32, pds map[*domain]uint32) (all []abi.Object) {
	for h, q := range r.cqs.m {
		n, _ := q.Describe()
		all = append(all, abi.NewObject(abi.ObjectCQ, h, pid).CQE(n).Users(q.users))
	}
	for _, q := range r.qps.m {
		all = append(all, abi.NewObject(abi.ObjectQP, q.Num(), pid).QP(uint8(q.Type()),
			q.Attributes().State, pds[q.pd]))
	}
	for h := range r.srqs.m {
		all = append(all, abi.NewObject(abi.ObjectSRQ, h, pid))
	}
	return all
}
