package fc

import (
	"encoding/binary"
	"fmt"
	"io"
)

// CTLen is the length in bytes of the Common Transport header.
const CTLen = 16

// These are Common Transport values of the directory service.
const (
	CTRevision     = 1
	GSTypeDirSvc   = 0xFC
	GSSubtypeNames = 0x02
)

// A CTCmd is the command or response code of a Common Transport IU.
type CTCmd uint16

// These are response codes, and commands of the name server.
const (
	CTReject CTCmd = 0x8001
	CTAccept CTCmd = 0x8002

	NSGPNID  CTCmd = 0x0112 // port name of an ID
	NSGNNID  CTCmd = 0x0113 // node name of an ID
	NSGFTID  CTCmd = 0x0117 // FC-4 types of an ID
	NSGIPPID CTCmd = 0x011B // port IP address of an ID
	NSGIDPN  CTCmd = 0x0121 // ID of a port name
	NSGIDNN  CTCmd = 0x0131 // IDs of a node name
	NSGNNIP  CTCmd = 0x0153 // node name of a node IP address
	NSGIDFT  CTCmd = 0x0171 // IDs with an FC-4 type
	NSGIDIPP CTCmd = 0x01B1 // IDs of a port IP address
	NSRPNID  CTCmd = 0x0212
	NSRNNID  CTCmd = 0x0213
	NSRCSID  CTCmd = 0x0214
	NSRFTID  CTCmd = 0x0217
	NSRSPNID CTCmd = 0x0218
	NSRPTID  CTCmd = 0x021A
	NSRIPPID CTCmd = 0x021B
	NSRFFID  CTCmd = 0x021F
	NSRIPNN  CTCmd = 0x0235
	NSRSNNNN CTCmd = 0x0239
	NSDAID   CTCmd = 0x0300 // remove all entries of an ID
)

var ctNames = map[CTCmd]string{
	CTReject: "reject", CTAccept: "accept", NSGPNID: "GPN_ID", NSGNNID: "GNN_ID", NSGFTID: "GFT_ID",
	NSGIPPID: "GIPP_ID", NSGIDPN: "GID_PN", NSGIDNN: "GID_NN", NSGNNIP: "GNN_IP", NSGIDFT: "GID_FT",
	NSGIDIPP: "GID_IPP", NSRPNID: "RPN_ID", NSRNNID: "RNN_ID", NSRCSID: "RCS_ID", NSRFTID: "RFT_ID",
	NSRSPNID: "RSPN_ID", NSRPTID: "RPT_ID", NSRIPPID: "RIPP_ID", NSRFFID: "RFF_ID", NSRIPNN: "RIP_NN",
	NSRSNNNN: "RSNN_NN", NSDAID: "DA_ID",
}

func (c CTCmd) String() string {
	if s, ok := ctNames[c]; ok {
		return s
	}
	return fmt.Sprintf("CT(0x%04x)", uint16(c))
}

// These are reasons and explanations of a Common Transport reject.
const (
	CTRsnCommand     = 0x01
	CTRsnVersion     = 0x02
	CTRsnLogical     = 0x03
	CTRsnBusy        = 0x05
	CTRsnProtocol    = 0x07
	CTRsnUnable      = 0x09
	CTRsnUnsupported = 0x0B

	CTExpPortID   = 0x01
	CTExpPortName = 0x02
	CTExpNodeName = 0x03
	CTExpNodeIP   = 0x05
	CTExpTypes    = 0x07
	CTExpPortIP   = 0x0B
)

// A CTHeader is the Common Transport header.
// [FCFS-2.11-1]
type CTHeader struct {
	Revision    uint8
	InID        Addr
	GSType      uint8
	GSSubtype   uint8
	Options     uint8
	Cmd         CTCmd
	Size        uint16 // in words: in a request the longest body accepted, 0 for any; in an answer the words omitted
	Reason      uint8
	Explanation uint8
	Vendor      uint8
}

// Append appends the CTLen bytes of h to b.
func (h CTHeader) Append(b []byte) []byte {
	b = append(b, h.Revision, byte(h.InID>>16), byte(h.InID>>8), byte(h.InID), h.GSType, h.GSSubtype, h.Options, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(h.Cmd))
	b = binary.BigEndian.AppendUint16(b, h.Size)
	return append(b, 0, h.Reason, h.Explanation, h.Vendor)
}

// ParseCT decodes the header at the front of b; the body follows.
func ParseCT(b []byte) (h CTHeader, n int, err error) {
	if len(b) < CTLen {
		return h, 0, io.ErrUnexpectedEOF
	}
	return CTHeader{
		Revision: b[0], InID: GetAddr(b[1:]), GSType: b[4], GSSubtype: b[5], Options: b[6],
		Cmd: CTCmd(binary.BigEndian.Uint16(b[8:])), Size: binary.BigEndian.Uint16(b[10:]),
		Reason: b[13], Explanation: b[14], Vendor: b[15],
	}, CTLen, nil
}

// A CTError is the error of a request rejected by a fabric service.
type CTError struct {
	Cmd                 CTCmd // the request
	Reason, Explanation uint8
}

func (e *CTError) Error() string {
	return fmt.Sprintf("fc: %v rejected: reason 0x%02x explanation 0x%02x", e.Cmd, e.Reason, e.Explanation)
}

// An FC4Map is the 32-byte map of FC-4 types. Type t is bit t mod 32, counted from the least
// significant bit, of the 32-bit word t div 32. [FCVI 7.6]
type FC4Map [32]byte

// Set marks type t. [FCVI-7.6-1]
func (m *FC4Map) Set(t Type) { m[int(t)/32*4+3-int(t)%32/8] |= 1 << (t % 8) }

// Has reports whether type t is marked.
func (m *FC4Map) Has(t Type) bool { return m[int(t)/32*4+3-int(t)%32/8]&(1<<(t%8)) != 0 }

// AppendNS appends a request to the name server, header and body, to b.
func AppendNS(b []byte, cmd CTCmd, body []byte) []byte {
	b = CTHeader{Revision: CTRevision, GSType: GSTypeDirSvc, GSSubtype: GSSubtypeNames, Cmd: cmd}.Append(b)
	return append(b, body...)
}

// An NSBody is the body of a name server request. Its methods append fields.
type NSBody []byte

// ID adds a zero byte and an N_Port_ID.
func (b NSBody) ID(a Addr) NSBody { return append(b, 0, byte(a>>16), byte(a>>8), byte(a)) }

// Name adds a Port_Name or Node_Name.
func (b NSBody) Name(w WWN) NSBody { return binary.BigEndian.AppendUint64(b, uint64(w)) }

// Bytes adds p.
func (b NSBody) Bytes(p ...byte) NSBody { return append(b, p...) }

// ParseIDList calls id for every entry of a list of N_Port_IDs, up to the entry marked as last by
// the high bit of its control byte. The error is io.ErrUnexpectedEOF if no entry is marked as last.
func ParseIDList(b []byte, id func(Addr)) error {
	for o := 0; o+4 <= len(b); o += 4 {
		id(GetAddr(b[o+1:]))
		if b[o]&0x80 != 0 {
			return nil
		}
	}
	return io.ErrUnexpectedEOF
}
