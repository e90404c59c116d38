package vitcpwire

import "fmt"

// A Type is the type of a message. Every segment of a message carries the type, in five bits. [VIT
// 3.1] [VIT-3.1-3]
type Type uint8

// These are the nine message types of the draft, in the draft's order, and one extension. [V-02]
const (
	Send           Type = 0
	ReadRequest    Type = 1
	ReadResponse   Type = 2
	Write          Type = 3
	NOP            Type = 4
	ConnectRequest Type = 5
	ConnectAccept  Type = 6
	ConnectReject  Type = 7
	ConnectNoMatch Type = 8

	// Disconnect announces an orderly end. It is not in the draft and is sent only to a peer that
	// has announced support. [V-17]
	Disconnect Type = 31
)

// draftTypes is the number of types in the draft. A [Dialect] may shift the numbers of the draft's
// types.
const draftTypes = 9

// messages has a row for each type.
var messages = [32]struct {
	name     string
	ce, rdma bool // headers that follow the segment header
	numbered bool
}{
	Send:           {name: "Send", numbered: true},
	ReadRequest:    {name: "RDMA Read Request", rdma: true, numbered: true},
	ReadResponse:   {name: "RDMA Read Response", rdma: true},
	Write:          {name: "RDMA Write", rdma: true, numbered: true},
	NOP:            {name: "NOP"},
	ConnectRequest: {name: "Connect Request", ce: true},
	ConnectAccept:  {name: "Connect Accept", ce: true},
	ConnectReject:  {name: "Connect Reject", ce: true},
	ConnectNoMatch: {name: "Connect No Match", ce: true},
	Disconnect:     {name: "Disconnect"},
}

// String returns the draft's name of t. For an unknown type String returns the number in
// hexadecimal.
func (t Type) String() string {
	if t.Known() {
		return messages[t].name
	}
	return fmt.Sprintf("Type(%#x)", uint8(t))
}

// Known reports whether t is among the constants above.
func (t Type) Known() bool { return int(t) < len(messages) && messages[t].name != "" }

// HasCE reports whether segments of type t carry a CE header. The types for connection set-up do.
// Connect Reject and Connect No Match do too, although the requester remembers the request, because
// they belong to connection establishment. [VIT-3-4]
func (t Type) HasCE() bool { return int(t) < len(messages) && messages[t].ce }

// HasRDMA reports whether segments of type t carry an RDMA header. For a Read Response the
// [Dialect] decides. [VIT-3-3] [V-23]
func (t Type) HasRDMA() bool { return int(t) < len(messages) && messages[t].rdma }

// Numbered reports whether each message of type t takes the sender's next message number. A Read
// Response has the number of its request, and a NOP repeats the last number. [V-11] [V-37]
func (t Type) Numbered() bool { return int(t) < len(messages) && messages[t].numbered }

// Flags are the three flag bits next to the type. [VIT 3.1] [V-03]
type Flags uint8

// The draft numbers the flags from 1, and bit 1 is taken as the lowest bit. [V-03]
const (
	ImmediateValid Flags = 0x01 // the Immediate field holds the consumer's value [VIT-3.1-4]
	EndOfMessage   Flags = 0x02 // the segment is the last of its message [VIT-3.1-5]
	TransmitError  Flags = 0x04 // the sender could not supply the rest of the message, whose bytes are void [VIT-3.1-6]
)

// String returns the names of the set flags, or "-" if none is set.
func (f Flags) String() string {
	return bitNames(uint16(f), flagNames[:])
}

var flagNames = [...]string{"immediate", "end", "transmit-error"}

// bitNames returns the names of the bits set in v, the lowest first, joined by "|". Bits without a
// name appear in hexadecimal.
func bitNames(v uint16, names []string) string {
	if v == 0 {
		return "-"
	}
	s := ""
	for i, name := range names {
		if v&(1<<i) != 0 {
			v &^= 1 << i
			s += "|" + name
		}
	}
	if v != 0 {
		s += fmt.Sprintf("|%#x", v)
	}
	return s[1:]
}
