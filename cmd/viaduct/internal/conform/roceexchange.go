package conform

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Queue pairs are exchanged over TCP as in ibv_rc_pingpong of rdma-core. Each side sends LID, queue
// pair number, first packet number and GID as text with a terminating zero byte. Then the dialling
// side sends "done". Afterwards the peer may send lines with announcements; see [rocePeer].
const (
	roceIntroLen = len("0000:000000:000000:00000000000000000000000000000000") + 1
	roceDone     = "done\x00"
)

// A rocePeer holds the announcements of a peer. ibv_rc_pingpong closes the connection after the
// exchange, and announces nothing else. Other peers send lines, of which "ready" is the last:
//
//	memory ADDRESS KEY LENGTH RIGHTS   a region; rights are letters of "rwa", numbers are hexadecimal
//	datagram QPN QKEY                  a queue pair that sends each datagram back
//	receives COUNT LENGTH              posted receives; the line "receive" requests one more
//	ready
type rocePeer struct {
	addr netip.Addr
	qpn  uint32
	psn  uint32 // sequence number of the peer's first request

	memory   []roceMemory
	datagram *roceDatagram // nil if the peer has none
	receives roceReceives  // zero if the peer announces none
	asks     bool          // the peer keeps the connection open for our lines
}

// A roceMemory is a region of the peer.
type roceMemory struct {
	addr   uint64
	key    uint32
	len    uint32
	rights string
}

type roceDatagram struct{ qpn, qkey uint32 }

type roceReceives struct{ count, len int }

// roceExchange exchanges queue pairs, and reads the announcements of the peer until "ready" or the
// end of the connection.
func (t *T) roceExchange(c net.Conn, own netip.Addr, qpn, psn uint32) (p rocePeer) {
	g := own.As16()
	intro := fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, qpn, psn, g)
	if t.c.Role == Passive {
		t.write(c, intro)
		p = t.roceIntro(c)
		t.write(c, []byte(roceDone))
	} else {
		p = t.roceIntro(c)
		t.write(c, intro)
		b := make([]byte, len(roceDone))
		n, e := t.read(c, b, t.g.Patience)
		t.check(e == whole && string(b) == roceDone, t.c.Rows[0],
			"%q, then %v, instead of %q to end the exchange of queue pairs", b[:n], e, roceDone)
	}
	for {
		line, ok := t.roceLine(c)
		if !ok {
			return p
		}
		if line == "ready" {
			p.asks = true
			return p
		}
		t.check(p.announce(line), t.c.Rows[0], "unknown line %q of the peer", line)
	}
}

// roceIntro reads the queue pair of the peer.
func (t *T) roceIntro(c net.Conn) (p rocePeer) {
	b := make([]byte, roceIntroLen)
	n, e := t.read(c, b, t.g.Patience)
	t.check(e == whole, t.c.Rows[0], "%d of the %d bytes that name the peer's queue pair, then %v", n, len(b), e)
	var lid, gid string
	_, err := fmt.Sscanf(strings.NewReplacer(":", " ", "\x00", "").Replace(string(b)),
		"%s %x %x %s", &lid, &p.qpn, &p.psn, &gid)
	t.check(err == nil && len(gid) == 32, t.c.Rows[0], "the peer names its queue pair by %q", b)
	g, err := hex.DecodeString(gid)
	t.check(err == nil, t.c.Rows[0], "the GID of the peer is %q", gid)
	p.addr = netip.AddrFrom16([16]byte(g)).Unmap()
	t.check(!p.addr.IsLinkLocalUnicast() && !p.addr.IsUnspecified(), "ROCE-NET-7",
		"the GID of the peer is %v, which is no address of RoCEv2: name the index of another GID to the peer (-g of ibv_rc_pingpong)", p.addr)
	return p
}

// roceLine reads a line; ok is false if the peer closes the connection or sends no whole line.
func (t *T) roceLine(c net.Conn) (line string, ok bool) {
	const most = 200
	var b [1]byte
	for len(line) < most {
		if _, e := t.read(c, b[:], t.g.Patience); e != whole {
			return "", false
		}
		if b[0] == '\n' {
			return line, true
		}
		line += string(b[:])
	}
	t.fail(t.c.Rows[0], "the peer sends a line of more than %d bytes", most)
	return "", false
}

// announce stores an announcement, and reports whether the line is valid.
func (p *rocePeer) announce(line string) bool {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "memory":
		var m roceMemory
		if _, err := fmt.Sscanf(rest, "%x %x %x %s", &m.addr, &m.key, &m.len, &m.rights); err != nil {
			return false
		}
		p.memory = append(p.memory, m)
	case "datagram":
		p.datagram = new(roceDatagram)
		_, err := fmt.Sscanf(rest, "%x %x", &p.datagram.qpn, &p.datagram.qkey)
		return err == nil
	case "receives":
		_, err := fmt.Sscanf(rest, "%d %d", &p.receives.count, &p.receives.len)
		return err == nil
	default:
		return false
	}
	return true
}
