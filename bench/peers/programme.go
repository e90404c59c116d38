package main

import (
	"fmt"
	"slices"
)

// The following functions return functions for setting the operation and the sizes of a measure.

func writes(size, depth, bell, footprint int) func(*measure) {
	return func(m *measure) {
		m.Op, m.Size, m.Depth, m.Bell, m.Footprint = opWrite, size, depth, bell, footprint
		m.Wait = size >= 64*kib // large messages need no polling
	}
}

func reads(size int) func(*measure) {
	return func(m *measure) {
		m.Op, m.Size, m.Depth, m.Bell, m.Footprint, m.Wait = opRead, size, 8, 4, size, true
	}
}

func sends(size int) func(*measure) {
	return func(m *measure) {
		m.Op, m.Size, m.Depth, m.Bell, m.Footprint, m.Wait = opSend, size, 4, 1, size, true
	}
}

func pings(size int) func(*measure) {
	return func(m *measure) { m.Op, m.Size, m.Depth, m.Bell, m.Footprint = opPing, size, 1, 1, size }
}

// fcvi returns a side of FC-VI over an FCIP link. It runs the same code as a side of vitcp, over
// another provider.
func (p *programme) fcvi(set func(m *measure)) side { return p.ours("fcvi", "fcvi", set) }

// besideVITCP compares fcvi with vitcp.
func besideVITCP(metric string, q quantity, goal, floor float64) row {
	return row{metric, "fcvi", "vitcp", q, goal, floor, q == latency}
}

// reception returns a side of vitcp at Reliable Reception. Sends complete only after the peer's
// acknowledgement.
func (p *programme) reception(set func(m *measure)) side {
	return p.ours("vitcp, Reliable Reception", "vitcp", func(m *measure) { set(m); m.Level = "reception" })
}

// besideDelivery compares reception with vitcp at Reliable Delivery.
func besideDelivery(metric, delivery string, q quantity) row {
	return row{metric, "vitcp, Reliable Reception", delivery, q, 0, 0, q == latency}
}

// bulk adds the contests of bandwidth.
func (p *programme) bulk() {
	const tcpStream = "C TCP"
	write := writes(mib, 4, 1, mib)
	s := append(p.each(write), p.fcvi(write), p.cSide(tcpStream, "stream", mib, 1, mib), p.ucxSide("ucp_put_bw", mib))
	p.add("RDMA Write, 1 MiB", append(s, p.fiSides("write", mib)...), slices.Concat(
		judge("bandwidth", tcpStream, bandwidth, 0.85, 0.70),
		judge("bandwidth", "libfabric tcp write", bandwidth, 1.4, 1.0),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 5, 3),
		[]row{besideVITCP("bandwidth", bandwidth, 0.5, 0.4)})...)

	s = append(p.each(sends(mib)), p.ucxSide("ucp_am_bw", mib))
	p.add("Send and receive, 1 MiB", append(s, p.fiSides("tagged", mib)...), slices.Concat(
		judge("bandwidth", "libfabric tcp tagged", bandwidth, 0.85, 0.65),
		judge("bandwidth", "libfabric net tagged", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_am_bw", bandwidth, 0.85, 0.65))...)

	write = writes(64*kib, 16, 4, 64*kib)
	const crc, small = "iwarp, CRC32C on", "iwarp, FPDUs of 1460 bytes"
	s = append(p.each(write), p.fcvi(write), p.reception(write),
		p.ours(crc, "iwarp", func(m *measure) { write(m); m.CRC = true }),
		p.ours(small, "iwarp", func(m *measure) { write(m); m.FPDU = 1460 }),
		p.cSide(tcpStream, "stream", 64*kib, 1, 64*kib), p.ucxSide("ucp_put_bw", 64*kib))
	p.add("RDMA Write, 64 KiB", append(s, p.fiSides("write", 64*kib)...), slices.Concat(
		judge("bandwidth", tcpStream, bandwidth, 1.25, 0.9),
		judge("bandwidth", "libfabric tcp write", bandwidth, 2, 1.2),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 4, 2),
		[]row{
			{"bandwidth", crc, "iwarp", bandwidth, 0.6, 0.5, false},
			{"bandwidth", small, "iwarp", bandwidth, 0.6, 0.5, false},
			besideDelivery("bandwidth", "vitcp", bandwidth),
			besideVITCP("bandwidth", bandwidth, 0.5, 0.4),
		})...)

	const batched = "C TCP, sendmsg of 16"
	s = append(p.each(writes(4*kib, 64, 16, 64*kib)), p.cSide(batched, "stream", 4*kib, 16, 64*kib), p.ucxSide("ucp_put_bw", 4*kib))
	p.add("RDMA Write, 4 KiB, 16 per doorbell", append(s, p.fiSides("write", 4*kib)...), slices.Concat(
		judge("bandwidth", batched, bandwidth, 0.75, 0.6),
		judge("bandwidth", "libfabric tcp write", bandwidth, 3, 2),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 3, 2))...)

	for _, size := range []int{64 * kib, mib} {
		p.add("RDMA Read, "+human(size), append(p.each(reads(size)), p.fiSides("read", size)...), slices.Concat(
			judge("bandwidth", "libfabric tcp read", bandwidth, 1.3, 0.9),
			judge("bandwidth", "libfabric net read", bandwidth, 0, 0))...)
	}
}

// small adds the contests of message rate. The rate depends on the number of messages per system
// call.
func (p *programme) small() {
	var s []side
	var rows []row
	for _, name := range rdma {
		for _, bell := range []int{64, 16, 1} {
			s = append(s, p.ours(fmt.Sprintf("%s, %d per doorbell", name, bell), name, writes(64, 256, bell, 16*kib)))
		}
	}
	const each = "C TCP, one send each"
	batch := writes(64, 256, 16, 16*kib)
	s = append(s, p.ours("fcvi, 16 per doorbell", "fcvi", batch), p.reception(batch))
	s = append(s, p.cSide(each, "stream", 64, 1, 16*kib), p.ucxSide("ucp_put_bw", 64))
	s = append(s, p.fiSides("write", 64)...)
	for _, name := range rdma {
		for _, peer := range []string{"UCX ucp_put_bw", "libfabric tcp write", "libfabric net write"} {
			judged := 1.0
			if peer == "libfabric net write" {
				judged = 0
			}
			rows = append(rows,
				row{"messages, 16 per doorbell", name + ", 16 per doorbell", peer, rate, judged * 8, judged * 5, false},
				row{"messages, 64 per doorbell", name + ", 64 per doorbell", peer, rate, judged * 20, judged * 10, false},
				row{"messages, one per doorbell", name + ", 1 per doorbell", peer, rate, judged * 0.85, judged * 0.7, false})
		}
		rows = append(rows,
			row{"messages, one per doorbell", name + ", 1 per doorbell", each, rate, 0.8, 0.7, false},
			row{"allocations per message", name + ", 16 per doorbell", "", allocs, 0.01, 0.01, true})
	}
	rows = append(rows,
		besideDelivery("messages, 16 per doorbell", "vitcp, 16 per doorbell", rate),
		row{"messages, 16 per doorbell", "fcvi, 16 per doorbell", "vitcp, 16 per doorbell", rate, 0, 0, false})
	p.add("RDMA Write, 64 B", s, rows...)
}

// waiting returns a ping-pong of two programs that sleep between messages. Both programs run on one
// processor, because the choice of the processor for waking a sleeper would otherwise matter more
// than the code.
func (p *programme) waiting(name, transport string) side {
	s := p.ours(name, transport, func(m *measure) { pings(8)(m); m.Wait, m.OneCPU = true, true })
	s.why = p.missing["taskset"]
	return s
}

func (p *programme) latencies() {
	const spinning = "C TCP, spinning"
	s := append(p.each(pings(8)), p.fcvi(pings(8)), p.reception(pings(8)),
		p.cSide(spinning, "spin", 8, 1, 8), p.ucxSide("tag_lat", 8))
	p.add("Latency one way, 8 B, polling", append(s, p.fiSides("ping", 8)...), slices.Concat(
		judge("latency", spinning, latency, 1.25, 1.5),
		judge("latency", "UCX tag_lat", latency, 1.0, 1.2),
		judge("latency", "libfabric tcp ping", latency, 1.0, 1.2),
		judge("latency", "libfabric net ping", latency, 0, 0),
		[]row{besideDelivery("latency", "vitcp", latency), besideVITCP("latency", latency, 0, 0)})...)

	s = append(p.each(pings(64*kib)), p.cSide(spinning, "spin", 64*kib, 1, 64*kib), p.ucxSide("tag_lat", 64*kib))
	p.add("Latency one way, 64 KiB, polling", s, slices.Concat(
		judge("latency", spinning, latency, 1.3, 1.6),
		judge("latency", "UCX tag_lat", latency, 0.6, 1.0))...)

	s = nil
	for _, name := range rdma {
		s = append(s, p.waiting(name, name))
	}
	p.add("Latency one way, 8 B, waiting, both on one processor",
		append(s, p.waiting("sdp", "sdp"), p.waiting("Go net.Conn", "tcp")),
		append(judge("latency", "Go net.Conn", latency, 1.2, 1.5),
			row{"latency", "sdp", "Go net.Conn", latency, 1.3, 1.6, true})...)
}

// libvipl adds the contests that compare the C library with the same loops in Go. Both send sixteen
// posted messages together: the program in Go posts sixteen messages by a single call, and the
// library collects messages posted singly. The targets are for TCP, where system calls dominate the
// cost of a message. Through shared memory, the calls from C into Go dominate.
func (p *programme) libvipl() {
	p.libviplBy("libvipl", "libvipl", "vi", false)
	p.libviplBy("libvipl, same host", "libvipl, shared memory", "vi, shared memory", true)
}

func (p *programme) libviplBy(title, lib, here string, rings bool) {
	const gatherOff, alone = ", gather off", ", 1 per doorbell"
	q := func(name, op string, size, depth, bell, footprint int, gather bool) side {
		return side{name: name, run: func() (result, error) { return p.vipl(op, size, depth, bell, footprint, gather, rings) }, why: p.missing["vipl"]}
	}
	ours := func(name string, set func(m *measure)) side {
		return p.ours(name, "vitcp", func(m *measure) { set(m); m.Rings = rings })
	}
	contest := func(what string, sides []side, ucx side, rows ...row) {
		if rings {
			p.add(title+", "+what, sides, rows...)
			return
		}
		for _, r := range rows {
			rows = append(rows, row{r.metric, r.ours, ucx.name, r.what, 0, 0, r.least})
		}
		p.add(title+", "+what, append(sides, ucx), rows...)
	}
	beside := func(metric, lib, theirs string, q quantity, goal, floor float64) row {
		if rings {
			goal, floor = 0, 0
		}
		return row{metric, lib, theirs, q, goal, floor, q == latency}
	}
	contest("RDMA Write, 1 MiB", []side{
		q(lib, "write", mib, 4, 1, mib, true), ours(here, writes(mib, 4, 1, mib)),
	}, p.ucxSide("ucp_put_bw", mib), beside("bandwidth", lib, here, bandwidth, 0.97, 0.8))
	contest("RDMA Write, 64 B", []side{
		q(lib, "write", 64, 256, 16, 16*kib, true), ours(here, writes(64, 256, 16, 16*kib)),
		q(lib+gatherOff, "write", 64, 256, 1, 16*kib, false), ours(here+alone, writes(64, 256, 1, 16*kib)),
	}, p.ucxSide("ucp_put_bw", 64),
		beside("messages, 16 per doorbell", lib, here, rate, 0.8, 0.6),
		beside("messages, one per doorbell", lib+gatherOff, here+alone, rate, 0.85, 0.7))
	contest("latency one way, 8 B, polling", []side{
		q(lib, "ping", 8, 1, 1, 8, true), ours(here, pings(8)),
	}, p.ucxSide("tag_lat", 8), beside("latency", lib, here, latency, 1.1, 1.3))
}

// scale adds the contests with many connections. The figures of plain TCP are shown for comparison.
func (p *programme) scale() {
	all := slices.Concat(rdma, []string{"tcp"})
	var s []side
	var rows []row
	for _, name := range all {
		one := func(m *measure) {
			writes(64*kib, 2, 1, 64*kib)(m)
			if name == "tcp" {
				m.Op = opStream
			}
		}
		s = append(s, p.ours(name, name, one), p.ours(name+", 1000 connections", name, func(m *measure) {
			one(m)
			m.Conns = 1000
			m.Time *= 2 // so that every connection has two turns
		}))
		rows = append(rows, unjudged(name, row{"total bandwidth", name + ", 1000 connections", name, bandwidth, 0.7, 0.5, false}))
	}
	p.add("1000 connections, 64 KiB", s, rows...)

	s, rows = nil, nil
	for _, name := range all {
		s = append(s, p.ours(name, name, func(m *measure) { m.Op, m.Conns = opIdle, 1000 }))
		rows = append(rows, unjudged(name, row{"memory of an idle connection", name, "", memory, 8 << 10, 16 << 10, true}))
	}
	p.add("1000 idle connections", s, rows...)

	s, rows = nil, nil
	for _, name := range []string{"vitcp", "iwarp", "fcvi", "sdp", "tcp"} {
		s = append(s, p.ours(name, name, func(m *measure) { m.Op = opSetup }))
		r := row{"connections per second", name, "tcp", rate, 0, 0, false}
		if name == "sdp" {
			r.goal, r.floor = 0.33, 0.2
		}
		if name != "tcp" {
			rows = append(rows, r)
		}
	}
	p.add("Connections made one after the other", s, rows...)
}

// unjudged returns r, without its targets if name is "tcp", because targets are for our own sides.
func unjudged(name string, r row) row {
	if name == "tcp" {
		r.goal, r.floor = 0, 0
	}
	return r
}

// streams adds the contests that compare sdp with plain TCP, whose net.Conn sdp replaces.
func (p *programme) streams() {
	const tcp = "Go TCP"
	stream := func(name, transport string, size int, crc bool) side {
		return p.ours(name, transport, func(m *measure) {
			m.Op, m.Size, m.Footprint, m.CRC = opStream, size, max(size, 64*kib), crc
		})
	}
	for _, size := range []int{64 * kib, mib} {
		p.add("Stream, writes of "+human(size), []side{
			stream("sdp", "sdp", size, false), stream("sdp, CRC32C on", "sdp", size, true), stream(tcp, "tcp", size, false),
		},
			row{"bandwidth", "sdp", tcp, bandwidth, 0.9, 0.8, false},
			row{"bandwidth", "sdp, CRC32C on", tcp, bandwidth, 0.7, 0.6, false})
	}
	p.add("Stream, writes of 64 B", []side{stream("sdp", "sdp", 64, false), stream(tcp, "tcp", 64, false)},
		row{"bandwidth", "sdp", tcp, bandwidth, 0, 0, false})

	ping := func(name, transport string) side {
		return p.ours(name, transport, func(m *measure) { pings(64)(m); m.Wait = true })
	}
	p.add("Stream, latency one way, 64 B", []side{ping("sdp", "sdp"), ping(tcp, "tcp")},
		row{"latency", "sdp", tcp, latency, 1.3, 1.6, true})
}

// orientation adds the contests that compare the plain C programs with well-known tools.
func (p *programme) orientation() {
	p.add("For orientation", []side{
		p.cSide("C TCP", "stream", mib, 1, mib),
		{name: "iperf3", run: func() (result, error) { return p.iperf3(mib) }, why: p.missing["iperf3"]},
		p.cSide("C TCP, blocking", "wait", 14, 1, 14),
		{name: "sockperf", run: func() (result, error) { return p.sockperf(14) }, why: p.missing["sockperf"]},
	},
		row{"bandwidth, 1 MiB", "C TCP", "iperf3", bandwidth, 0, 0, false},
		row{"latency, 14 B, blocking", "C TCP, blocking", "sockperf", latency, 0, 0, true})
}
