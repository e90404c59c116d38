package fc

import (
	"encoding/binary"
	"fmt"
	"io"
)

// An ELSCmd is the first byte of an extended link service payload.
type ELSCmd uint8

// These are the commands of extended link services.
const (
	ELSRjt       ELSCmd = 0x01 // LS_RJT
	ELSAcc       ELSCmd = 0x02 // LS_ACC
	ELSPLOGI     ELSCmd = 0x03
	ELSFLOGI     ELSCmd = 0x04
	ELSLOGO      ELSCmd = 0x05
	ELSRTV       ELSCmd = 0x0E
	ELSECHO      ELSCmd = 0x10
	ELSRRQ       ELSCmd = 0x12
	ELSREC       ELSCmd = 0x13
	ELSPDISC     ELSCmd = 0x50
	ELSFDISC     ELSCmd = 0x51
	ELSADISC     ELSCmd = 0x52
	ELSFARPReq   ELSCmd = 0x54
	ELSFARPReply ELSCmd = 0x55
	ELSFAN       ELSCmd = 0x60
	ELSRSCN      ELSCmd = 0x61
	ELSSCR       ELSCmd = 0x62
	ELSLKA       ELSCmd = 0x80 // link keep alive (FC-BB)
)

func (c ELSCmd) String() string {
	switch c {
	case ELSRjt:
		return "LS_RJT"
	case ELSAcc:
		return "LS_ACC"
	case ELSPLOGI:
		return "PLOGI"
	case ELSFLOGI:
		return "FLOGI"
	case ELSLOGO:
		return "LOGO"
	case ELSRTV:
		return "RTV"
	case ELSECHO:
		return "ECHO"
	case ELSRRQ:
		return "RRQ"
	case ELSREC:
		return "REC"
	case ELSPDISC:
		return "PDISC"
	case ELSFDISC:
		return "FDISC"
	case ELSADISC:
		return "ADISC"
	case ELSFARPReq:
		return "FARP-REQ"
	case ELSFARPReply:
		return "FARP-REPLY"
	case ELSFAN:
		return "FAN"
	case ELSRSCN:
		return "RSCN"
	case ELSSCR:
		return "SCR"
	case ELSLKA:
		return "LKA"
	}
	return fmt.Sprintf("ELS(0x%02x)", uint8(c))
}

// CmdOf returns the command of an ELS payload, or 0 if the payload is shorter than four bytes.
func CmdOf(b []byte) ELSCmd {
	if len(b) < 4 {
		return 0
	}
	return ELSCmd(b[0])
}

// AppendCmd appends the four bytes of a payload with only a command word, such as an LS_ACC without
// data.
func AppendCmd(b []byte, c ELSCmd) []byte { return append(b, byte(c), 0, 0, 0) }

// These are reason codes of LS_RJT.
const (
	RjtInvalidCmd   = 0x01
	RjtLogical      = 0x03
	RjtBusy         = 0x05
	RjtProtocol     = 0x07
	RjtUnable       = 0x09
	RjtNotSupported = 0x0B
	RjtInProgress   = 0x0E
)

// These are explanation codes of LS_RJT.
const (
	ExplNone        = 0x00
	ExplInvalidID   = 0x17 // invalid OX_ID-RX_ID combination
	ExplLogin       = 0x1E // N_Port login required
	ExplResources   = 0x29
	ExplUnsupported = 0x2C
)

// LSRjtLen is the length in bytes of an LS_RJT payload.
const LSRjtLen = 8

// An LSRjt is the payload of LS_RJT. It is also the error of a rejected request.
type LSRjt struct {
	Reason, Explanation, Vendor uint8
}

// Append appends the LSRjtLen bytes of r to b.
func (r LSRjt) Append(b []byte) []byte {
	return append(b, byte(ELSRjt), 0, 0, 0, 0, r.Reason, r.Explanation, r.Vendor)
}

// ParseLSRjt decodes an LS_RJT payload.
func ParseLSRjt(b []byte) (r LSRjt, n int, err error) {
	if len(b) < LSRjtLen {
		return r, 0, io.ErrUnexpectedEOF
	}
	return LSRjt{Reason: b[5], Explanation: b[6], Vendor: b[7]}, LSRjtLen, nil
}

func (r LSRjt) Error() string {
	return fmt.Sprintf("fc: rejected: LS_RJT reason 0x%02x explanation 0x%02x", r.Reason, r.Explanation)
}

// These are common features in login parameters.
const (
	FeatCIRO      = 0x8000 // PLOGI: continuously increasing relative offset
	FeatCleanAddr = 0x8000 // FLOGI LS_ACC: clean address
	FeatRandomRO  = 0x4000
	FeatFPort     = 0x1000
	FeatAltCredit = 0x0800
	FeatEDTOVns   = 0x0400
	FeatBroadcast = 0x0100
	FeatCISeqCnt  = 0x0002 // continuously increasing SEQ_CNT
)

// These are service options of a class.
const (
	ClassValid   = 0x8000
	ClassInOrder = 0x0800 // sequential delivery: requested, or in an answer granted
)

// ClassParams are the service parameters of a class of service.
type ClassParams struct {
	Options    uint16
	InitCtl    uint16
	RecipCtl   uint16
	RxSize     uint16 // receive data field size in bytes
	Concurrent uint16 // concurrent sequences
	EECredit   uint16 // end-to-end credit; used in class 2 only
	OpenSeqs   uint16 // open sequences per exchange
}

// LoginLen is the length in bytes of FLOGI, PLOGI, PDISC, FDISC and their LS_ACC.
const LoginLen = 116

// A Login is the payload of FLOGI, PLOGI, PDISC and FDISC, and of their LS_ACC. In an F_Port's
// LS_ACC the bytes 12 to 15 are R_A_TOV; in all other payloads they are two 16-bit fields.
// [FCFS-2.7-1]
type Login struct {
	Cmd         ELSCmd
	VersionHigh uint8
	VersionLow  uint8
	BBCredit    uint16
	Features    uint16
	RxSize      uint16 // in bytes, 256 to 2112; the four high bits are BB_SC_N and stay 0
	Word3       uint32
	EDTOV       uint32 // in milliseconds, or in nanoseconds with FeatEDTOVns
	PortName    WWN
	NodeName    WWN // Fabric_Name in an F_Port's LS_ACC
	Class       [4]ClassParams
	Vendor      [16]byte
}

// Append appends the LoginLen bytes of l to b.
func (l *Login) Append(b []byte) []byte {
	b = append(b, byte(l.Cmd), 0, 0, 0, l.VersionHigh, l.VersionLow)
	b = binary.BigEndian.AppendUint16(b, l.BBCredit)
	b = binary.BigEndian.AppendUint16(b, l.Features)
	b = binary.BigEndian.AppendUint16(b, l.RxSize&0x0FFF)
	b = binary.BigEndian.AppendUint32(b, l.Word3)
	b = binary.BigEndian.AppendUint32(b, l.EDTOV)
	b = binary.BigEndian.AppendUint64(b, uint64(l.PortName))
	b = binary.BigEndian.AppendUint64(b, uint64(l.NodeName))
	for i := range l.Class {
		c := &l.Class[i]
		for _, v := range [...]uint16{c.Options, c.InitCtl, c.RecipCtl, c.RxSize, c.Concurrent, c.EECredit, c.OpenSeqs, 0} {
			b = binary.BigEndian.AppendUint16(b, v)
		}
	}
	return append(b, l.Vendor[:]...)
}

// ParseLogin decodes a login payload or the LS_ACC to one. The error is io.ErrUnexpectedEOF, or
// ErrFormat if the receive data field size is invalid.
func ParseLogin(b []byte) (l Login, n int, err error) {
	if len(b) < LoginLen {
		return l, 0, io.ErrUnexpectedEOF
	}
	u16 := func(i int) uint16 { return binary.BigEndian.Uint16(b[i:]) }
	l.Cmd, l.VersionHigh, l.VersionLow = ELSCmd(b[0]), b[4], b[5]
	l.BBCredit, l.Features, l.RxSize = u16(6), u16(8), u16(10)&0x0FFF
	l.Word3 = binary.BigEndian.Uint32(b[12:])
	l.EDTOV = binary.BigEndian.Uint32(b[16:])
	l.PortName = WWN(binary.BigEndian.Uint64(b[20:]))
	l.NodeName = WWN(binary.BigEndian.Uint64(b[28:]))
	for i := range l.Class {
		o := 36 + 16*i
		l.Class[i] = ClassParams{
			Options: u16(o), InitCtl: u16(o + 2), RecipCtl: u16(o + 4), RxSize: u16(o+6) & 0x0FFF,
			Concurrent: u16(o + 8), EECredit: u16(o + 10), OpenSeqs: u16(o + 12),
		}
	}
	copy(l.Vendor[:], b[100:])
	if l.RxSize < MinRxSize || l.RxSize > MaxData || l.RxSize%4 != 0 { // [FCFS-2.7-2]
		return l, 0, fmt.Errorf("%w: receive data field size %d", ErrFormat, l.RxSize)
	}
	return l, LoginLen, nil
}

// LOGOLen is the length in bytes of a LOGO payload.
const LOGOLen = 16

// A LOGO is the payload of LOGO.
// [FCFS-2.7-5]
type LOGO struct {
	ID       Addr
	PortName WWN
}

// Append appends the LOGOLen bytes of l to b.
func (l LOGO) Append(b []byte) []byte {
	b = append(b, byte(ELSLOGO), 0, 0, 0, 0, byte(l.ID>>16), byte(l.ID>>8), byte(l.ID))
	return binary.BigEndian.AppendUint64(b, uint64(l.PortName))
}

// ParseLOGO decodes a LOGO payload.
func ParseLOGO(b []byte) (l LOGO, n int, err error) {
	if len(b) < LOGOLen {
		return l, 0, io.ErrUnexpectedEOF
	}
	return LOGO{ID: GetAddr(b[5:]), PortName: WWN(binary.BigEndian.Uint64(b[8:]))}, LOGOLen, nil
}

// ADISCLen is the length in bytes of the payload of ADISC and of an LS_ACC to ADISC.
const ADISCLen = 28

// An ADISC is the payload of ADISC and of an LS_ACC to ADISC. A FAN is a separate type, because FAN
// orders the fields differently.
type ADISC struct {
	Cmd      ELSCmd
	HardAddr Addr
	PortName WWN
	NodeName WWN
	ID       Addr
}

// Append appends the ADISCLen bytes of a to b.
func (a ADISC) Append(b []byte) []byte {
	b = append(b, byte(a.Cmd), 0, 0, 0, 0, byte(a.HardAddr>>16), byte(a.HardAddr>>8), byte(a.HardAddr))
	b = binary.BigEndian.AppendUint64(b, uint64(a.PortName))
	b = binary.BigEndian.AppendUint64(b, uint64(a.NodeName))
	return append(b, 0, byte(a.ID>>16), byte(a.ID>>8), byte(a.ID))
}

// ParseADISC decodes the payload of ADISC or of an LS_ACC to ADISC.
func ParseADISC(b []byte) (a ADISC, n int, err error) {
	if len(b) < ADISCLen {
		return a, 0, io.ErrUnexpectedEOF
	}
	return ADISC{
		Cmd: ELSCmd(b[0]), HardAddr: GetAddr(b[5:]),
		PortName: WWN(binary.BigEndian.Uint64(b[8:])), NodeName: WWN(binary.BigEndian.Uint64(b[16:])),
		ID: GetAddr(b[25:]),
	}, ADISCLen, nil
}

// ExchIDLen is the length in bytes of an RRQ or REC payload.
const ExchIDLen = 12

// An ExchID is the payload of RRQ and REC: the name of an exchange.
type ExchID struct {
	Cmd        ELSCmd
	Originator Addr
	OXID, RXID uint16
}

// Append appends the ExchIDLen bytes of e to b.
func (e ExchID) Append(b []byte) []byte {
	b = append(b, byte(e.Cmd), 0, 0, 0, 0, byte(e.Originator>>16), byte(e.Originator>>8), byte(e.Originator))
	b = binary.BigEndian.AppendUint16(b, e.OXID)
	return binary.BigEndian.AppendUint16(b, e.RXID)
}

// ParseExchID decodes an RRQ or REC payload.
func ParseExchID(b []byte) (e ExchID, n int, err error) {
	if len(b) < ExchIDLen {
		return e, 0, io.ErrUnexpectedEOF
	}
	return ExchID{Cmd: ELSCmd(b[0]), Originator: GetAddr(b[5:]),
		OXID: binary.BigEndian.Uint16(b[8:]), RXID: binary.BigEndian.Uint16(b[10:])}, ExchIDLen, nil
}

// RTVAccLen is the length in bytes of the LS_ACC to RTV.
const RTVAccLen = 16

// An RTVAcc is the LS_ACC to RTV: the timers of a fabric, in milliseconds.
type RTVAcc struct {
	RATOV, EDTOV, Qualifier uint32
}

// Append appends the RTVAccLen bytes of r to b.
func (r RTVAcc) Append(b []byte) []byte {
	b = AppendCmd(b, ELSAcc)
	b = binary.BigEndian.AppendUint32(b, r.RATOV)
	b = binary.BigEndian.AppendUint32(b, r.EDTOV)
	return binary.BigEndian.AppendUint32(b, r.Qualifier)
}

// ParseRTVAcc decodes the LS_ACC to RTV.
func ParseRTVAcc(b []byte) (r RTVAcc, n int, err error) {
	if len(b) < RTVAccLen {
		return r, 0, io.ErrUnexpectedEOF
	}
	return RTVAcc{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])},
		RTVAccLen, nil
}

// These are the functions of SCR.
const (
	SCRFabric = 1
	SCRNPort  = 2
	SCRFull   = 3
	SCRClear  = 255
)

// SCRLen is the length in bytes of an SCR payload.
const SCRLen = 8

// An SCR is the payload of SCR, a request for reports of state changes.
type SCR struct{ Function uint8 }

// Append appends the SCRLen bytes of s to b.
func (s SCR) Append(b []byte) []byte { return append(b, byte(ELSSCR), 0, 0, 0, 0, 0, 0, s.Function) }

// ParseSCR decodes an SCR payload.
func ParseSCR(b []byte) (s SCR, n int, err error) {
	if len(b) < SCRLen {
		return s, 0, io.ErrUnexpectedEOF
	}
	return SCR{Function: b[7]}, SCRLen, nil
}

// These are address formats of RSCN, the two low bits of a page's first byte.
const (
	RSCNPort   = 0
	RSCNArea   = 1
	RSCNDomain = 2
	RSCNFabric = 3
)

// An RSCNPage names the changed addresses.
type RSCNPage struct {
	Qualifier uint8 // event qualifier in bits 5..2, address format in 1..0
	ID        Addr
}

// Covers reports whether the page names address a, or its area, domain or fabric.
func (p RSCNPage) Covers(a Addr) bool {
	switch p.Qualifier & 3 {
	case RSCNPort:
		return p.ID == a
	case RSCNArea:
		return p.ID>>8 == a>>8
	case RSCNDomain:
		return p.ID>>16 == a>>16
	}
	return true
}

// AppendRSCN appends an RSCN payload with the given pages to b.
func AppendRSCN(b []byte, pages ...RSCNPage) []byte {
	b = append(b, byte(ELSRSCN), 4)
	b = binary.BigEndian.AppendUint16(b, uint16(4+4*len(pages)))
	for _, p := range pages {
		b = append(b, p.Qualifier, byte(p.ID>>16), byte(p.ID>>8), byte(p.ID))
	}
	return b
}

// ParseRSCN calls page for every page of an RSCN payload. If a length is invalid, ParseRSCN returns
// an error without calling page.
func ParseRSCN(b []byte, page func(RSCNPage)) error {
	if len(b) < 4 {
		return io.ErrUnexpectedEOF
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if b[1] != 4 || n < 4 || n%4 != 0 || n > len(b) {
		return fmt.Errorf("%w: RSCN page length %d, payload length %d of %d", ErrFormat, b[1], n, len(b))
	}
	for o := 4; o < n; o += 4 {
		page(RSCNPage{Qualifier: b[o], ID: GetAddr(b[o+1:])})
	}
	return nil
}

// FANLen is the length in bytes of a FAN payload.
const FANLen = 24

// A FAN is the payload of FAN, by which the fabric port of a loop announces the port's and the
// fabric's names.
type FAN struct {
	LoopFabric Addr // fabric address of the loop
	PortName   WWN  // F_Port_Name
	FabricName WWN
}

// Append appends the FANLen bytes of f to b.
func (f FAN) Append(b []byte) []byte {
	b = append(b, byte(ELSFAN), 0, 0, 0, 0, byte(f.LoopFabric>>16), byte(f.LoopFabric>>8), byte(f.LoopFabric))
	b = binary.BigEndian.AppendUint64(b, uint64(f.PortName))
	return binary.BigEndian.AppendUint64(b, uint64(f.FabricName))
}

// ParseFAN decodes a FAN payload.
func ParseFAN(b []byte) (f FAN, n int, err error) {
	if len(b) < FANLen {
		return f, 0, io.ErrUnexpectedEOF
	}
	return FAN{LoopFabric: GetAddr(b[5:]), PortName: WWN(binary.BigEndian.Uint64(b[8:])),
		FabricName: WWN(binary.BigEndian.Uint64(b[16:]))}, FANLen, nil
}
