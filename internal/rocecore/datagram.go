package rocecore

import (
	"viaduct/internal/wire/ib"
)

// A DatagramConfig holds the parameters of a queue pair for unreliable datagrams.
type DatagramConfig struct {
	MTU  int // bytes of payload
	QPN  uint32
	QKey uint32
	PKey uint16 // 0 means the default partition
	PSN  ib.PSN // PSN of the first datagram
}

// A Datagram is a queue pair for unreliable datagrams.
type Datagram struct {
	cfg    DatagramConfig
	host   Host
	psn    ib.PSN
	posted fifo[*Request]
	failed bool
	count  Counters
}

// NewDatagram returns a queue pair that is ready to send and to receive.
func NewDatagram(host Host, cfg DatagramConfig) *Datagram {
	if cfg.PKey == 0 {
		cfg.PKey = ib.DefaultPKey
	}
	return &Datagram{cfg: cfg, host: host, psn: cfg.PSN}
}

// Counters returns the current counters.
func (d *Datagram) Counters() Counters { return d.count }

// Failed reports whether the queue pair is in the error state.
func (d *Datagram) Failed() bool { return d.failed }

// SetQKey changes the key that received datagrams must carry.
func (d *Datagram) SetQKey(k uint32) { d.cfg.QKey = k }

// Fail puts the queue pair into the error state, which flushes all posted requests.
func (d *Datagram) Fail() {
	if d.failed {
		return
	}
	d.failed = true
	for d.posted.len() > 0 {
		d.host.RequestDone(d.posted.pop(), Completion{Status: Flushed})
	}
	d.host.Failed(Flushed)
}

// Post adds a Send, whose buffer has at most DatagramConfig.MTU bytes. In the error state the
// request is flushed at once. [ROCE-UD-1]
func (d *Datagram) Post(r *Request) {
	if d.failed {
		d.host.RequestDone(r, Completion{Status: Flushed})
		return
	}
	d.posted.push(r)
}

// Transmit appends at most limit datagrams to out, and completes their requests. more reports
// whether there are further datagrams. [ROCE-UC-4]
func (d *Datagram) Transmit(out *Output, limit int) (more bool) {
	for range limit {
		if d.posted.len() == 0 {
			return false
		}
		r := d.posted.pop()
		d.host.RequestDone(r, Completion{Status: d.send(out, r)})
	}
	return d.posted.len() > 0
}

func (d *Datagram) send(out *Output, r *Request) Status {
	op := ib.SendOnly
	if r.HasImm {
		op = ib.SendOnlyImm
	}
	n := r.length()
	p := ib.Packet{BTH: ib.BTH{Opcode: op.On(ib.UD), Solicited: r.Solicited, PKey: d.cfg.PKey,
		QPN: r.To.QPN, PSN: d.psn},
		DETH: ib.DETH{QKey: r.To.QKey, SourceQPN: d.cfg.QPN}, Imm: r.Imm}
	room := out.begin(&p, n)
	if n > 0 {
		if err := r.Buf.ReadAt(room, 0); err != nil {
			return LocalProtection
		}
	}
	out.end(r.To.Addr)
	d.psn = d.psn.Add(1)
	d.count.SentPackets++
	return OK
}

// Receive handles a datagram. The caller has checked the invariant CRC. grh describes the IP
// header. A datagram that cannot be received is dropped and counted in Refused. [ROCE-UD-2]
// [ROCE-UD-4]
func (d *Datagram) Receive(p *ib.Packet, grh *ib.GRH) {
	if d.failed || p.Opcode.Transport() != ib.UD || p.DETH.QKey != d.cfg.QKey ||
		!ib.PKeyMatches(p.PKey, d.cfg.PKey) || len(p.Payload) > d.cfg.MTU {
		d.count.Refused++
		return
	}
	r, ok := d.host.NextReceive()
	if !ok {
		d.count.Refused++
		return
	}
	d.count.ReceivedPackets++
	d.host.Received(r, d.deliver(r, p, grh))
}

// deliver stores a datagram in a receive buffer, after the 40 bytes of its GRH. The status is
// LocalLength if the buffer is too short. [ROCE-UD-3] [ROCE-UD-5]
func (d *Datagram) deliver(r Receive, p *ib.Packet, grh *ib.GRH) Arrival {
	n := ib.GRHLen + len(p.Payload)
	if r.Buf == nil || r.Buf.Len() < n {
		return Arrival{Status: LocalLength}
	}
	var head [ib.GRHLen]byte
	if r.Buf.WriteAt(grh.Append(head[:0]), 0) != nil ||
		len(p.Payload) > 0 && r.Buf.WriteAt(p.Payload, ib.GRHLen) != nil {
		return Arrival{Status: LocalProtection}
	}
	return Arrival{Len: n, HasImm: p.Opcode.HasImm(), Imm: p.Imm, Solicited: p.Solicited, Source: p.DETH.SourceQPN}
}
