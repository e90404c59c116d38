package perftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Lengths in bytes of the messages of the control stream.
const (
	versionLen = 16
	wordLen    = 4
	mtuLen     = 2
	keysLen    = 56
	numberLen  = 8

	creditLen = 4 // length of the count of received messages, which is an RDMA Write
)

// exchangeVersion is the version of Debian's perftest 4.5. Like the original, package perftest
// refuses versions before minVersion, whose messages had other lengths.
const (
	exchangeVersion = "6.06"
	minVersion      = 5.70
)

// appendVersion appends the versionLen bytes of a version, truncated if necessary, with a zero at
// the end.
func appendVersion(b []byte, v string) []byte {
	var m [versionLen]byte
	copy(m[:versionLen-1], v)
	return append(b, m[:]...)
}

// parseVersion returns the text of a version and checks that it is known.
func parseVersion(b []byte) (string, error) {
	if len(b) != versionLen {
		return "", lengthError("version", b, versionLen)
	}
	text, _, ended := bytes.Cut(b, []byte{0})
	v, err := strconv.ParseFloat(string(text), 64)
	if !ended || err != nil || !(v >= minVersion && v < 1000) {
		return "", fmt.Errorf("perftest: version %q, want %.2f or later", text, minVersion)
	}
	return string(text), nil
}

func lengthError(what string, b []byte, want int) error {
	return fmt.Errorf("perftest: %s of %d bytes, want %d", what, len(b), want)
}

// parseWord decodes the buffer or the cache line, a number from lo to hi.
func parseWord(what string, b []byte, lo, hi uint32) (int, error) {
	if len(b) != wordLen {
		return 0, lengthError(what, b, wordLen)
	}
	v := binary.BigEndian.Uint32(b)
	if v < lo || v > hi {
		return 0, fmt.Errorf("perftest: %s %d, want %d to %d", what, v, lo, hi)
	}
	return int(v), nil
}

// An mtu is the path MTU in the numbering of verbs: 1 means 256 bytes, 5 means 4096. iWARP does not
// use the path MTU; the driver of Linux's software adapter reports 3.
type mtu uint8

// defaultMTU is 1024 bytes.
const defaultMTU mtu = 3

// append appends m as a digit, and a zero byte.
func (m mtu) append(b []byte) []byte { return append(b, '0'+byte(m), 0) }

func parseMTU(b []byte) (mtu, error) {
	if len(b) != mtuLen {
		return 0, lengthError("MTU", b, mtuLen)
	}
	if b[0] < '0' || b[0] > '9' || b[1] != 0 {
		return 0, fmt.Errorf("perftest: MTU %q, want a digit", b)
	}
	return mtu(b[0] - '0'), nil
}

// keys describe a side's end of the data stream. Most fields belong to other transports. Both sides
// also exchange keys, often all zero, to wait for each other.
//
//	+--------+---------+-------+-------+--------+--------+
//	| lid  4 | reads 4 | qpn 4 | psn 4 | rkey 4 | hole 4 |
//	+--------+---------+-------+-------+--------+--------+
//	| address       8  | gid              16 (12 follow) |
//	+------------------+---------------------------------+
//
// followed by srqn 4 and gid index 4. The hole is not initialised.
type keys struct {
	lid      uint32
	outReads uint32 // number of Reads that may be outstanding
	qpn, psn uint32
	rkey     uint32 // STag
	vaddr    uint64 // tagged offset
	gid      [16]byte
	srqn     uint32
	gidIndex uint32
}

// append appends the keysLen bytes of k.
func (k keys) append(b []byte) []byte {
	for _, v := range []uint32{k.lid, k.outReads, k.qpn, k.psn, k.rkey, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, k.vaddr)
	b = append(b, k.gid[:]...)
	b = binary.BigEndian.AppendUint32(b, k.srqn)
	return binary.BigEndian.AppendUint32(b, k.gidIndex)
}

func parseKeys(b []byte) (k keys, err error) {
	if len(b) != keysLen {
		return k, lengthError("keys", b, keysLen)
	}
	for i, p := range []*uint32{&k.lid, &k.outReads, &k.qpn, &k.psn, &k.rkey} {
		*p = binary.BigEndian.Uint32(b[4*i:])
	}
	k.vaddr = binary.BigEndian.Uint64(b[24:])
	copy(k.gid[:], b[32:])
	k.srqn = binary.BigEndian.Uint32(b[48:])
	k.gidIndex = binary.BigEndian.Uint32(b[52:])
	return k, nil
}

// A Report holds the client's measurements, sent to the server at the end of ib_write_bw and
// ib_read_bw. The tools' server sends an uninitialised Report.
type Report struct {
	Size    uint64  // bytes per message
	Count   uint64  // messages
	Peak    float64 // units of 2^20 bytes per second; 0 if not measured
	Average float64 // units of 2^20 bytes per second
	Rate    float64 // millions of messages per second
}

// reportNumbers is the number of messages of a Report.
const reportNumbers = 5

// numbers returns the messages of r.
func (r Report) numbers() [reportNumbers]uint64 {
	return [reportNumbers]uint64{r.Size, r.Count, math.Float64bits(r.Peak), math.Float64bits(r.Average), math.Float64bits(r.Rate)}
}

func reportOf(n [reportNumbers]uint64) Report {
	return Report{Size: n[0], Count: n[1], Peak: math.Float64frombits(n[2]), Average: math.Float64frombits(n[3]), Rate: math.Float64frombits(n[4])}
}

func parseNumber(b []byte) (uint64, error) {
	if len(b) != numberLen {
		return 0, lengthError("number of the report", b, numberLen)
	}
	return binary.BigEndian.Uint64(b), nil
}

// errEnded reports that the peer has closed too early.
var errEnded = fmt.Errorf("perftest: the peer closed before the end: %w", io.ErrUnexpectedEOF)
