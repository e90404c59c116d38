package fc

import "fmt"

// These sizes, in bytes, are fixed by FC-FS.
const (
	HeaderLen   = 24   // frame header
	CRCLen      = 4    // frame check sequence
	MaxData     = 2112 // maximum length of a Data_Field, including optional headers
	MinRxSize   = 256  // minimum receive data field size that a port may announce
	MaxSeqCount = 65536
)

// An RCtl is the R_CTL field: routing bits and information category.
// [FCFS-2.1-2]
type RCtl uint8

// These are R_CTL values of FC-FS.
const (
	RCtlUncategorized RCtl = 0x00
	RCtlSolData       RCtl = 0x01
	RCtlUnsolControl  RCtl = 0x02 // also a Common Transport request
	RCtlSolControl    RCtl = 0x03 // also a Common Transport reply
	RCtlUnsolData     RCtl = 0x04
	RCtlDataDesc      RCtl = 0x05
	RCtlUnsolCommand  RCtl = 0x06
	RCtlStatus        RCtl = 0x07
	RCtlELSReq        RCtl = 0x22
	RCtlELSReply      RCtl = 0x23
	RCtlNOP           RCtl = 0x80
	RCtlABTS          RCtl = 0x81
	RCtlBAAcc         RCtl = 0x84
	RCtlBARjt         RCtl = 0x85
	RCtlACK1          RCtl = 0xC0
	RCtlACK0          RCtl = 0xC1
	RCtlPRJT          RCtl = 0xC2
	RCtlFRJT          RCtl = 0xC3
	RCtlPBSY          RCtl = 0xC4
	RCtlFBSYData      RCtl = 0xC5
	RCtlFBSYLink      RCtl = 0xC6
	RCtlLCR           RCtl = 0xC7
)

// IsDeviceData reports whether r routes to an FC-4 as device data.
func (r RCtl) IsDeviceData() bool { return r <= 0x07 }

// IsLinkControl reports whether r is a link control code, such as ACK, reject or busy.
func (r RCtl) IsLinkControl() bool { return r&0xF0 == 0xC0 }

func (r RCtl) String() string {
	switch r {
	case RCtlUncategorized:
		return "uncategorized"
	case RCtlSolData:
		return "solicited data"
	case RCtlUnsolControl:
		return "unsolicited control"
	case RCtlSolControl:
		return "solicited control"
	case RCtlUnsolData:
		return "unsolicited data"
	case RCtlDataDesc:
		return "data descriptor"
	case RCtlUnsolCommand:
		return "unsolicited command"
	case RCtlStatus:
		return "command status"
	case RCtlELSReq:
		return "ELS request"
	case RCtlELSReply:
		return "ELS reply"
	case RCtlNOP:
		return "NOP"
	case RCtlABTS:
		return "ABTS"
	case RCtlBAAcc:
		return "BA_ACC"
	case RCtlBARjt:
		return "BA_RJT"
	case RCtlACK1:
		return "ACK_1"
	case RCtlACK0:
		return "ACK_0"
	case RCtlPRJT:
		return "P_RJT"
	case RCtlFRJT:
		return "F_RJT"
	case RCtlPBSY:
		return "P_BSY"
	case RCtlFBSYData, RCtlFBSYLink:
		return "F_BSY"
	case RCtlLCR:
		return "LCR"
	}
	return fmt.Sprintf("R_CTL(0x%02x)", uint8(r))
}

// A Type is the TYPE field: the protocol of a frame.
type Type uint8

// These are TYPE values.
const (
	TypeBLS   Type = 0x00
	TypeELS   Type = 0x01
	TypeIP    Type = 0x05
	TypeFCP   Type = 0x08
	TypeCT    Type = 0x20
	TypeSWILS Type = 0x22
	TypeFCVI  Type = 0x58 // [FCVI 5.8.3]
)

func (t Type) String() string {
	switch t {
	case TypeBLS:
		return "BLS"
	case TypeELS:
		return "ELS"
	case TypeIP:
		return "IP"
	case TypeFCP:
		return "FCP"
	case TypeCT:
		return "CT"
	case TypeSWILS:
		return "SW_ILS"
	case TypeFCVI:
		return "FC-VI"
	}
	return fmt.Sprintf("TYPE(0x%02x)", uint8(t))
}

// An FCtl is the 24-bit F_CTL field.
// [FCFS-2.1-3]
type FCtl uint32

// These are F_CTL bits of FC-FS.
const (
	FCtlExchResponder FCtl = 0x800000 // sent by the exchange responder
	FCtlSeqRecipient  FCtl = 0x400000 // sent by the sequence recipient
	FCtlFirstSeq      FCtl = 0x200000
	FCtlLastSeq       FCtl = 0x100000
	FCtlEndSeq        FCtl = 0x080000
	FCtlPriority      FCtl = 0x020000
	FCtlSeqInit       FCtl = 0x010000 // transfers Sequence Initiative
	FCtlACKForm       FCtl = 0x003000
	FCtlACK1          FCtl = 0x001000 // ACK_1 expected
	FCtlRetransmitted FCtl = 0x000200
	FCtlContinue      FCtl = 0x0000C0
	FCtlAbort         FCtl = 0x000030
	FCtlRelOffset     FCtl = 0x000008 // Parameter is a relative offset
	FCtlFill          FCtl = 0x000003 // fill bytes at the end of the Data_Field
)

// These are DF_CTL bits. They announce the optional headers before the payload.
const (
	DFCtlESP     = 0x40
	DFCtlNetwork = 0x20 // 16 bytes
	DFCtlAssoc   = 0x10 // 32 bytes
	DFCtlDevMask = 0x03 // Device_Header: 1, 2, 3 for 16, 32, 64 bytes
	DFCtlDev16   = 0x01
	DFCtlDev32   = 0x02
	DFCtlDev64   = 0x03
)

// OptionalLen returns the number of bytes of optional headers DF_CTL announces. It does not count
// the ESP header, because no port here negotiates it. [FCFS-2.1-5]
func OptionalLen(dfctl uint8) int {
	n := 0
	if dfctl&DFCtlNetwork != 0 {
		n += 16
	}
	if dfctl&DFCtlAssoc != 0 {
		n += 32
	}
	if d := dfctl & DFCtlDevMask; d != 0 {
		n += 8 << d
	}
	return n
}

// An SOF is a start-of-frame delimiter in encapsulated code (RFC 3643). [FCFS-2.2-1]
type SOF uint8

// These are the codes of SOF.
const (
	SOFf  SOF = 0x28
	SOFi2 SOF = 0x2D
	SOFn2 SOF = 0x35
	SOFi3 SOF = 0x2E
	SOFn3 SOF = 0x36
	SOFi4 SOF = 0x29
	SOFn4 SOF = 0x31
	SOFc4 SOF = 0x39
)

// Valid reports whether s is a code of RFC 3643.
func (s SOF) Valid() bool {
	switch s {
	case SOFf, SOFi2, SOFn2, SOFi3, SOFn3, SOFi4, SOFn4, SOFc4:
		return true
	}
	return false
}

// Class returns the class of service: Class2, Class3, 4 for class 4, or ClassF. It returns 0 for an
// unknown code.
func (s SOF) Class() Class {
	switch s {
	case SOFi2, SOFn2:
		return Class2
	case SOFi3, SOFn3:
		return Class3
	case SOFi4, SOFn4, SOFc4:
		return 4
	case SOFf:
		return ClassF
	}
	return 0
}

// First reports whether s opens a sequence.
func (s SOF) First() bool { return s == SOFi2 || s == SOFi3 || s == SOFi4 || s == SOFf }

func (s SOF) String() string {
	switch s {
	case SOFf:
		return "SOFf"
	case SOFi2:
		return "SOFi2"
	case SOFn2:
		return "SOFn2"
	case SOFi3:
		return "SOFi3"
	case SOFn3:
		return "SOFn3"
	case SOFi4:
		return "SOFi4"
	case SOFn4:
		return "SOFn4"
	case SOFc4:
		return "SOFc4"
	}
	return fmt.Sprintf("SOF(0x%02x)", uint8(s))
}

// An EOF is an end-of-frame delimiter in encapsulated code (RFC 3643).
type EOF uint8

// These are the codes of EOF.
const (
	EOFn    EOF = 0x41
	EOFt    EOF = 0x42
	EOFrt   EOF = 0x44
	EOFdt   EOF = 0x46
	EOFni   EOF = 0x49
	EOFdti  EOF = 0x4E
	EOFrti  EOF = 0x4F
	EOFa    EOF = 0x50
	eofNone EOF = 0
)

// Valid reports whether e is a code of RFC 3643.
func (e EOF) Valid() bool {
	switch e {
	case EOFn, EOFt, EOFrt, EOFdt, EOFni, EOFdti, EOFrti, EOFa:
		return true
	}
	return false
}

// Invalid reports whether e marks a frame whose content must not be used.
func (e EOF) Invalid() bool { return e == EOFni || e == EOFa || e == EOFdti || e == EOFrti }

func (e EOF) String() string {
	switch e {
	case EOFn:
		return "EOFn"
	case EOFt:
		return "EOFt"
	case EOFrt:
		return "EOFrt"
	case EOFdt:
		return "EOFdt"
	case EOFni:
		return "EOFni"
	case EOFdti:
		return "EOFdti"
	case EOFrti:
		return "EOFrti"
	case EOFa:
		return "EOFa"
	case eofNone:
		return "EOF(none)"
	}
	return fmt.Sprintf("EOF(0x%02x)", uint8(e))
}

// A Class is a class of service.
type Class uint8

// These classes of service are implemented.
const (
	Class2 Class = 2
	Class3 Class = 3
	ClassF Class = 0xF
)

// Delimiters returns the SOF and EOF of a data frame of class c. first and last say whether the
// frame is the first and the last of its sequence. In class 2 the last data frame still ends in
// EOFn, because its ACK carries EOFt. [FCFS-2.2-2] [FCVI-5.7-7]
func (c Class) Delimiters(first, last bool) (SOF, EOF) {
	switch c {
	case Class2:
		if first {
			return SOFi2, EOFn
		}
		return SOFn2, EOFn
	case ClassF:
		if last {
			return SOFf, EOFt
		}
		return SOFf, EOFn
	}
	s, e := SOFn3, EOFn
	if first {
		s = SOFi3
	}
	if last {
		e = EOFt
	}
	return s, e
}
