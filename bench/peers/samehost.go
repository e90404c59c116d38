package main

import "slices"

// rings returns a side of ours through shared memory.
func (p *programme) rings(transport string, set func(m *measure)) side {
	return p.ours(ringsOf(transport), transport, func(m *measure) { set(m); m.Rings = true })
}

func ringsOf(transport string) string { return transport + ", shared memory" }

// oneCopy returns a side through shared memory, sending from memory of samehost.Alloc.
func (p *programme) oneCopy(transport string, set func(m *measure)) side {
	return p.ours(oneCopyOf(transport), transport, func(m *measure) { set(m); m.Rings, m.Alloc = true, true })
}

func oneCopyOf(transport string) string { return transport + ", one copy" }

// oneCopies returns a side of oneCopy for each transport of rdma.
func (p *programme) oneCopies(set func(m *measure)) (s []side) {
	for _, name := range rdma {
		s = append(s, p.oneCopy(name, set))
	}
	return s
}

// judgeOneCopy returns rows comparing each side of oneCopies with our side of two copies, and with
// the side theirs.
func judgeOneCopy(theirs string) (r []row) {
	for _, name := range rdma {
		r = append(r, row{"bandwidth", oneCopyOf(name), ringsOf(name), bandwidth, 0, 0, false},
			row{"bandwidth", oneCopyOf(name), theirs, bandwidth, 0, 0, false})
	}
	return r
}

// bothPaths returns, for each transport of rdma, a side through shared memory and a side by TCP.
func (p *programme) bothPaths(set func(m *measure)) (s []side) {
	for _, name := range rdma {
		s = append(s, p.rings(name, set), p.ours(name, name, set))
	}
	return s
}

// judgeRings compares our sides through shared memory with theirs, or with our own side by TCP if
// theirs is "".
func judgeRings(metric, theirs string, q quantity, goal, floor float64) (r []row) {
	for _, name := range rdma {
		their := theirs
		if their == "" {
			their = name
		}
		r = append(r, row{metric, ringsOf(name), their, q, goal, floor, q == latency})
	}
	return r
}

// The following functions return sides of the peers over shared memory. UCX's posix and libfabric's
// shm copy messages into and out of a shared segment. For long messages the kernel may copy
// directly between the processes.

func (t *toolbox) ucxPosix(test string, size int) side {
	return side{name: "UCX posix " + test, run: func() (result, error) { return t.ucx("posix", test, size) }, why: t.missing["ucx_perftest"]}
}

func (t *toolbox) fiShm(op string, size int) side {
	return side{name: "libfabric shm " + op, run: func() (result, error) { return t.libfabric("shm", op, size) }, why: t.missing["libfabric"]}
}

// sameHost adds the contests of two processes of one host over shared memory.
func (p *programme) sameHost() {
	ping := pings(8)
	p.add("Same host, latency one way, 8 B, polling",
		append(p.bothPaths(ping), p.ucxPosix("tag_lat", 8), p.fiShm("ping", 8)), slices.Concat(
			judgeRings("latency", "", latency, 0.15, 0.25),
			judgeRings("latency", "UCX posix tag_lat", latency, 2, 3),
			judgeRings("latency", "libfabric shm ping", latency, 0, 0))...)

	const each = "C TCP, one send each"
	p.add("Same host, RDMA Write, 64 B, one per doorbell",
		append(p.bothPaths(writes(64, 256, 1, 16*kib)), p.cSide(each, "stream", 64, 1, 16*kib),
			p.ucxPosix("ucp_put_bw", 64), p.fiShm("write", 64)), slices.Concat(
			judgeRings("messages", each, rate, 12, 8),
			judgeRings("messages", "", rate, 0, 0),
			judgeRings("messages", "UCX posix ucp_put_bw", rate, 0, 0),
			judgeRings("messages", "libfabric shm write", rate, 0, 0))...)

	const stream = "C TCP"
	for _, c := range []struct {
		size, depth, bell int
		goal, floor       float64
	}{{64 * kib, 16, 4, 4, 2.5}, {mib, 4, 1, 2, 1.3}} {
		p.add("Same host, RDMA Write, "+human(c.size),
			slices.Concat(p.bothPaths(writes(c.size, c.depth, c.bell, c.size)), p.oneCopies(writes(c.size, c.depth, c.bell, c.size)),
				[]side{p.cSide(stream, "stream", c.size, 1, c.size), p.ucxPosix("ucp_put_bw", c.size), p.fiShm("write", c.size)}), slices.Concat(
				judgeRings("bandwidth", stream, bandwidth, c.goal, c.floor),
				judgeRings("bandwidth", "", bandwidth, 0, 0),
				judgeRings("bandwidth", "UCX posix ucp_put_bw", bandwidth, 0, 0),
				judgeRings("bandwidth", "libfabric shm write", bandwidth, 0, 0),
				judgeOneCopy("UCX posix ucp_put_bw"))...)
	}

	p.add("Same host, send and receive, 64 KiB",
		append(p.bothPaths(sends(64*kib)), p.ucxPosix("tag_bw", 64*kib), p.fiShm("tagged", 64*kib)), slices.Concat(
			judgeRings("bandwidth", "UCX posix tag_bw", bandwidth, 1, 0.7),
			judgeRings("bandwidth", "", bandwidth, 0, 0),
			judgeRings("bandwidth", "libfabric shm tagged", bandwidth, 0, 0))...)

	const tcp, unix = "Go TCP", "Go unix socket"
	for _, c := range []struct {
		size        int
		goal, floor float64
	}{{64 * kib, 3, 2}, {mib, 2, 1.3}} {
		set := func(m *measure) { m.Op, m.Size, m.Footprint = opStream, c.size, c.size }
		p.add("Same host, stream, writes of "+human(c.size),
			[]side{p.rings("sdp", set), p.ours("sdp", "sdp", set), p.ours(tcp, "tcp", set), p.ours(unix, "unix", set)},
			row{"bandwidth", ringsOf("sdp"), tcp, bandwidth, c.goal, c.floor, false},
			row{"bandwidth", ringsOf("sdp"), "sdp", bandwidth, 0, 0, false},
			row{"bandwidth", ringsOf("sdp"), unix, bandwidth, 0, 0, false})
	}

	set := func(m *measure) { pings(64)(m); m.Wait = true }
	p.add("Same host, stream, latency one way, 64 B",
		[]side{p.rings("sdp", set), p.ours("sdp", "sdp", set), p.ours(tcp, "tcp", set), p.ours(unix, "unix", set)},
		row{"latency", ringsOf("sdp"), tcp, latency, 0.5, 0.7, true},
		row{"latency", ringsOf("sdp"), unix, latency, 1, 1.3, true},
		row{"latency", ringsOf("sdp"), "sdp", latency, 0, 0, true})

	var s []side
	var rows []row
	setup := func(m *measure) { m.Op = opSetup }
	for _, name := range []string{"vitcp", "iwarp", "sdp"} {
		s = append(s, p.rings(name, setup), p.ours(name, name, setup))
		rows = append(rows, row{"connections per second", ringsOf(name), name, rate, 0, 0, false})
	}
	p.add("Same host, connections made one after the other", s, rows...)
}
