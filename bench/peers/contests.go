package main

import "fmt"

// A side is one program under measurement.
type side struct {
	name string
	run  func() (result, error)
	why  string // it can't take part
}

// A quantity is what is read off a result.
type quantity uint8

const (
	bandwidth quantity = iota // bytes per second
	rate                      // messages per second
	latency                   // microseconds one way
	memory                    // bytes per connection, the greater of both sides
	allocs                    // heap objects per message, both sides
)

func (q quantity) of(r result) float64 {
	switch q {
	case bandwidth:
		return r.Bytes / max(r.Seconds, 1e-9)
	case rate:
		return r.Messages / max(r.Seconds, 1e-9)
	case latency:
		return r.LatencyUS
	case memory:
		return max(r.TxMemory, r.RxMemory)
	case allocs:
		return r.TxAllocs + r.RxAllocs
	}
	return 0
}

func (q quantity) format(v float64) string {
	switch q {
	case bandwidth:
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case rate:
		if v < 1e6 {
			return fmt.Sprintf("%.0f k/s", v/1e3)
		}
		return fmt.Sprintf("%.2f M/s", v/1e6)
	case latency:
		return fmt.Sprintf("%.2f us", v)
	case memory:
		return fmt.Sprintf("%.1f KiB", v/1024)
	}
	return fmt.Sprintf("%.4f", v)
}

// A row is one target: ours beside theirs.
type row struct {
	metric string
	ours   string // names of sides
	theirs string // "": the figure itself is judged
	what   quantity
	goal   float64 // of the ratio ours/theirs, or of the figure; 0: shown only
	floor  float64
	least  bool // less is better
}

// A contest is what is measured in the same interleaved rounds.
type contest struct {
	title string
	sides []side
	rows  []row
}

// ours returns a side measured with our own packages.
func ours(name string, m measure) side {
	s := side{name: name, run: func() (result, error) { return driveApart(m) }}
	if _, ok := endpoints[m.Transport]; !ok {
		s.why = m.Transport + " is not part of this build"
	}
	return s
}

// rdma are the transports that the RDMA targets are for.
func rdma() (ts []string) {
	for _, t := range []string{"vitcp", "iwarp"} {
		if _, ok := endpoints[t]; ok {
			ts = append(ts, t)
		}
	}
	return ts
}

// contests returns everything there is a target for.
func (t *toolbox) contests(base measure) []contest {
	const (
		tcpStream = "C TCP"
		kib, mib  = 1 << 10, 1 << 20
	)
	with := func(f func(m *measure)) measure { m := base; f(&m); return m }
	each := func(f func(m *measure)) (s []side) {
		for _, name := range rdma() {
			s = append(s, ours(name, with(func(m *measure) { m.Transport = name; f(m) })))
		}
		return s
	}
	judge := func(metric, theirs string, q quantity, goal, floor float64) (r []row) {
		for _, name := range rdma() {
			r = append(r, row{metric: metric, ours: name, theirs: theirs, what: q, goal: goal, floor: floor, least: q == latency})
		}
		return r
	}
	c := func(name, op string, size, batch, footprint int) side {
		return side{name, func() (result, error) { return t.c(op, size, batch, footprint) }, t.missing["c"]}
	}
	ucx := func(test string, size int) side {
		return side{"UCX " + test, func() (result, error) { return t.ucx(test, size) }, t.missing["ucx_perftest"]}
	}
	// The provider "tcp" is what the targets name; "net" is libfabric's newer
	// one, which later releases call tcp: it is shown and not judged.
	fi := func(op string, size int) []side {
		return []side{
			{"libfabric tcp " + op, func() (result, error) { return t.libfabric("tcp", op, size) }, t.missing["libfabric"]},
			{"libfabric net " + op, func() (result, error) { return t.libfabric("net", op, size) }, t.missing["libfabric"]},
		}
	}
	var all []contest
	add := func(title string, sides []side, rows ...[]row) {
		ct := contest{title: title, sides: sides}
		for _, r := range rows {
			ct.rows = append(ct.rows, r...)
		}
		all = append(all, ct)
	}

	write := func(size, depth, bell, footprint int) func(*measure) {
		return func(m *measure) {
			m.Op, m.Size, m.Depth, m.Bell, m.Footprint = opWrite, size, depth, bell, footprint
			m.Wait = size >= 64*kib // nobody spins for bulk
		}
	}
	s := each(write(mib, 4, 1, mib))
	s = append(s, c(tcpStream, "stream", mib, 1, mib), ucx("ucp_put_bw", mib))
	s = append(s, fi("write", mib)...)
	add("RDMA Write, 1 MiB", s,
		judge("bandwidth", tcpStream, bandwidth, 0.85, 0.70),
		judge("bandwidth", "libfabric tcp write", bandwidth, 1.4, 1.0),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 5, 3))

	s = each(func(m *measure) { m.Op, m.Size, m.Depth, m.Bell, m.Footprint, m.Wait = opSend, mib, 4, 1, mib, true })
	s = append(s, ucx("ucp_am_bw", mib))
	s = append(s, fi("tagged", mib)...)
	add("Send and receive, 1 MiB", s,
		judge("bandwidth", "libfabric tcp tagged", bandwidth, 0.85, 0.65),
		judge("bandwidth", "libfabric net tagged", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_am_bw", bandwidth, 0.85, 0.65))

	s = each(write(64*kib, 16, 4, 64*kib))
	s = append(s, c(tcpStream, "stream", 64*kib, 1, 64*kib), ucx("ucp_put_bw", 64*kib))
	s = append(s, fi("write", 64*kib)...)
	add("RDMA Write, 64 KiB", s,
		judge("bandwidth", tcpStream, bandwidth, 1.25, 0.9),
		judge("bandwidth", "libfabric tcp write", bandwidth, 2, 1.2),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 4, 2))

	s = each(write(4*kib, 64, 16, 64*kib))
	s = append(s, c("C TCP, sendmsg of 16", "stream", 4*kib, 16, 64*kib), ucx("ucp_put_bw", 4*kib))
	s = append(s, fi("write", 4*kib)...)
	add("RDMA Write, 4 KiB, 16 per doorbell", s,
		judge("bandwidth", "C TCP, sendmsg of 16", bandwidth, 0.75, 0.6),
		judge("bandwidth", "libfabric tcp write", bandwidth, 3, 2),
		judge("bandwidth", "libfabric net write", bandwidth, 0, 0),
		judge("bandwidth", "UCX ucp_put_bw", bandwidth, 3, 2))

	for _, size := range []int{64 * kib, mib} {
		s = each(func(m *measure) { m.Op, m.Size, m.Depth, m.Bell, m.Footprint, m.Wait = opRead, size, 8, 4, size, true })
		s = append(s, fi("read", size)...)
		add("RDMA Read, "+human(size), s,
			judge("bandwidth", "libfabric tcp read", bandwidth, 1.3, 0.9),
			judge("bandwidth", "libfabric net read", bandwidth, 0, 0))
	}

	s = nil
	var rows []row
	for _, name := range rdma() {
		for _, bell := range []int{64, 16, 1} {
			s = append(s, ours(fmt.Sprintf("%s, %d per doorbell", name, bell),
				with(func(m *measure) { m.Transport = name; write(64, 256, bell, 16*kib)(m) })))
		}
	}
	s = append(s, c("C TCP, one send each", "stream", 64, 1, 16*kib), ucx("ucp_put_bw", 64))
	s = append(s, fi("write", 64)...)
	for _, name := range rdma() {
		for _, p := range []string{"UCX ucp_put_bw", "libfabric tcp write", "libfabric net write"} {
			judged := 1.0
			if p == "libfabric net write" {
				judged = 0
			}
			rows = append(rows,
				row{"messages, 16 per doorbell", name + ", 16 per doorbell", p, rate, judged * 8, judged * 5, false},
				row{"messages, 64 per doorbell", name + ", 64 per doorbell", p, rate, judged * 20, judged * 10, false},
				row{"messages, one per doorbell", name + ", 1 per doorbell", p, rate, judged * 0.85, judged * 0.7, false})
		}
		rows = append(rows,
			row{"messages, one per doorbell", name + ", 1 per doorbell", "C TCP, one send each", rate, 0.8, 0.7, false},
			row{"allocations per message", name + ", 16 per doorbell", "", allocs, 0.01, 0.01, true})
	}
	add("RDMA Write, 64 B", s, rows)

	ping := func(size int) func(*measure) {
		return func(m *measure) { m.Op, m.Size, m.Depth, m.Bell, m.Footprint = opPing, size, 1, 1, size }
	}
	s = each(ping(8))
	s = append(s, c("C TCP, spinning", "spin", 8, 1, 8), ucx("tag_lat", 8))
	s = append(s, fi("ping", 8)...)
	add("Latency one way, 8 B, polling", s,
		judge("latency", "C TCP, spinning", latency, 1.25, 1.5),
		judge("latency", "UCX tag_lat", latency, 1.0, 1.2),
		judge("latency", "libfabric tcp ping", latency, 1.0, 1.2),
		judge("latency", "libfabric net ping", latency, 0, 0))

	s = each(ping(64 * kib))
	s = append(s, c("C TCP, spinning", "spin", 64*kib, 1, 64*kib), ucx("tag_lat", 64*kib))
	add("Latency one way, 64 KiB, polling", s,
		judge("latency", "C TCP, spinning", latency, 1.3, 1.6),
		judge("latency", "UCX tag_lat", latency, 0.6, 1.0))

	waiting := func(name, transport string) side {
		s := ours(name, with(func(m *measure) { m.Transport = transport; ping(8)(m); m.Wait, m.OneCPU = true, true }))
		if t.missing["taskset"] != "" {
			s.why = t.missing["taskset"]
		}
		return s
	}
	s = nil
	for _, name := range rdma() {
		s = append(s, waiting(name, name))
	}
	s = append(s, waiting("Go net.Conn", "tcp"))
	add("Latency one way, 8 B, waiting, both on one processor", s, judge("latency", "Go net.Conn", latency, 1.2, 1.5))

	if _, ok := endpoints["vitcp"]; ok {
		s, rows = nil, nil
		level := func(name, level string, f func(m *measure)) {
			s = append(s, ours(name, with(func(m *measure) { m.Transport, m.Level = "vitcp", level; f(m) })))
		}
		level("reception, 64 KiB", "reception", write(64*kib, 16, 4, 64*kib))
		level("delivery, 64 KiB", "delivery", write(64*kib, 16, 4, 64*kib))
		level("reception, 64 B", "reception", write(64, 256, 16, 16*kib))
		level("delivery, 64 B", "delivery", write(64, 256, 16, 16*kib))
		level("reception, 8 B", "reception", ping(8))
		level("delivery, 8 B", "delivery", ping(8))
		add("vitcp, Reliable Reception beside Reliable Delivery", s, []row{
			{"bandwidth", "reception, 64 KiB", "delivery, 64 KiB", bandwidth, 0, 0, false},
			{"messages, 16 per doorbell", "reception, 64 B", "delivery, 64 B", rate, 0, 0, false},
			{"latency, polling", "reception, 8 B", "delivery, 8 B", latency, 0, 0, true},
		})
	}

	if _, ok := endpoints["iwarp"]; ok {
		plain := with(func(m *measure) { m.Transport = "iwarp"; write(64*kib, 16, 4, 64*kib)(m) })
		crc, small := plain, plain
		crc.CRC = true
		small.FPDU = 1460
		add("iwarp, RDMA Write, 64 KiB", []side{ours("iwarp", plain), ours("iwarp, CRC32C on", crc), ours("iwarp, FPDUs of 1460 bytes", small)},
			[]row{
				{"bandwidth", "iwarp, CRC32C on", "iwarp", bandwidth, 0.6, 0.5, false},
				{"bandwidth", "iwarp, FPDUs of 1460 bytes", "iwarp", bandwidth, 0.6, 0.5, false},
			})
	}

	s, rows = nil, nil
	for _, name := range append(rdma(), "tcp") {
		op := opWrite
		if name == "tcp" {
			op = opStream
		}
		one := with(func(m *measure) { m.Transport = name; write(64*kib, 2, 1, 64*kib)(m); m.Op = op })
		many := one
		many.Conns = 1000
		many.Time *= 2 // every connection has to have its turn, and again
		s = append(s, ours(name, one), ours(name+", 1000 connections", many))
		r := row{"total bandwidth", name + ", 1000 connections", name, bandwidth, 0.7, 0.5, false}
		if name == "tcp" {
			r.goal, r.floor = 0, 0
		}
		rows = append(rows, r)
	}
	add("1000 connections, 64 KiB", s, rows)

	s, rows = nil, nil
	for _, name := range append(rdma(), "tcp") {
		s = append(s, ours(name, with(func(m *measure) { m.Transport, m.Op, m.Conns = name, opIdle, 1000 })))
		r := row{"memory of an idle connection", name, "", memory, 8 << 10, 16 << 10, true}
		if name == "tcp" {
			r.goal, r.floor = 0, 0
		}
		rows = append(rows, r)
	}
	add("1000 idle connections", s, rows)

	s, rows = nil, nil
	for _, name := range append(rdma(), "tcp") {
		s = append(s, ours(name, with(func(m *measure) { m.Transport, m.Op = name, opSetup })))
		if name != "tcp" {
			rows = append(rows, row{"connections per second", name, "tcp", rate, 0, 0, false})
		}
	}
	add("Connections made one after the other", s, rows)

	if _, ok := endpoints["sdp"]; ok {
		stream := func(tr string, crc bool) measure {
			return with(func(m *measure) {
				m.Transport, m.Op, m.Size, m.Footprint, m.CRC = tr, opStream, 64*kib, 64*kib, crc
			})
		}
		add("sdp, stream of 64 KiB writes", []side{ours("sdp", stream("sdp", false)), ours("sdp, CRC32C on", stream("sdp", true)), ours("Go TCP", stream("tcp", false))},
			[]row{
				{"bandwidth", "sdp", "Go TCP", bandwidth, 0.9, 0.8, false},
				{"bandwidth", "sdp, CRC32C on", "Go TCP", bandwidth, 0.7, 0.6, false},
			})
		add("sdp, latency one way, 8 B", []side{waiting("sdp", "sdp"), waiting("Go net.Conn", "tcp")},
			[]row{{"latency, both on one processor", "sdp", "Go net.Conn", latency, 1.3, 1.6, true}})
	}
	if _, ok := endpoints["fcvi"]; ok {
		add("fcvi beside vitcp, RDMA Write, 64 KiB", []side{
			ours("fcvi", with(func(m *measure) { m.Transport = "fcvi"; write(64*kib, 16, 4, 64*kib)(m) })),
			ours("vitcp", with(func(m *measure) { m.Transport = "vitcp"; write(64*kib, 16, 4, 64*kib)(m) })),
		}, []row{{"bandwidth", "fcvi", "vitcp", bandwidth, 0.5, 0.4, false}})
	}

	add("For orientation", []side{
		c(tcpStream, "stream", mib, 1, mib),
		{"iperf3", func() (result, error) { return t.iperf3(mib) }, t.missing["iperf3"]},
		c("C TCP, blocking", "wait", 14, 1, 14),
		{"sockperf", func() (result, error) { return t.sockperf(14) }, t.missing["sockperf"]},
	}, []row{
		{"bandwidth, 1 MiB", "C TCP", "iperf3", bandwidth, 0, 0, false},
		{"latency, 14 B, blocking", "C TCP, blocking", "sockperf", latency, 0, 0, true},
	})
	return all
}

func human(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
