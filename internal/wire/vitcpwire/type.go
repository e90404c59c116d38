package vitcpwire

import "fmt"

// A Type is the kind of a message; every segment of a message carries it.
// It is five bits wide on the wire. [VIT 3.1] [VIT-3.1-3]
type Type uint8

// The nine message types of the draft, in the order in which it lists them,
// and one extension. [V-02]
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
	// has announced support for it. [V-17]
	Disconnect Type = 31
)

// draftTypes is the number of types that the draft names; a [Dialect] may
// shift these.
const draftTypes = 9

// messages has the rows by type.
var messages = [32]struct {
	name     string
	ce, rdma bool // the headers that follow the common one
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

// String names t in the draft's words; an unknown type prints as hex.
func (t Type) String() string {
	if t.Known() {
		return messages[t].name
	}
	return fmt.Sprintf("Type(%#x)", uint8(t))
}

// Known reports whether t is one of the constants above.
func (t Type) Known() bool { return int(t) < len(messages) && messages[t].name != "" }

// HasCE reports whether segments of type t carry a CE header: those that establish a connection.
// Connect Reject and Connect No Match carry it too, although the requester remembers its request,
// because they belong to connection establishment. [VIT-3-4]
func (t Type) HasCE() bool { return int(t) < len(messages) && messages[t].ce }

// HasRDMA reports whether segments of type t carry an RDMA header. For a Read Response it depends
// on the [Dialect]. [VIT-3-3] [V-23]
func (t Type) HasRDMA() bool { return int(t) < len(messages) && messages[t].rdma }

// Numbered reports whether each message of type t takes the next message
// number of its sender. A Read Response carries the number of its request; a
// NOP repeats the last one. [V-11] [V-37]
func (t Type) Numbered() bool { return int(t) < len(messages) && messages[t].numbered }

// Flags are the three flag bits next to the type. [VIT 3.1] [V-03]
type Flags uint8

// The flags of the draft, its bits 1 to 3.
const (
	ImmediateValid Flags = 0x01 // the Immediate field holds the consumer's value [VIT-3.1-4]
	EndOfMessage   Flags = 0x02 // the last segment of its message [VIT-3.1-5]
	TransmitError  Flags = 0x04 // the sender could not supply the rest; the bytes are void [VIT-3.1-6]
)

// String lists the flags that are set, "-" if there are none.
func (f Flags) String() string {
	return bitNames(uint16(f), flagNames[:])
}

var flagNames = [...]string{"immediate", "end", "transmit-error"}

// bitNames lists the names of the bits set in v, lowest first, joined by "|", and bits without a
// name as hex.
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
