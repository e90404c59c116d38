package rdmap

import (
	"fmt"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
)

// A Layer is the layer where the error of a Terminate message was found. [RDMAP 4.8]
type Layer uint8

// These are the layers of RFC 5040.
const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
	LayerLLP   Layer = 2 // MPA
)

// String returns the name of the layer.
func (l Layer) String() string {
	switch l {
	case LayerRDMAP:
		return "RDMAP"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "MPA"
	}
	return fmt.Sprintf("layer 0x%x", uint8(l))
}

// These are the error types of layer RDMAP. [RDMAP 4.8]
const (
	TypeCatastrophic = 0
	TypeProtection   = 1 // remote protection error
	TypeOperation    = 2 // remote operation error
)

// A Fault is an error RDMAP finds in a message, or OK.
type Fault uint8

// These are the faults. The numbers are the error type and code in the table of RFC 5040.
// [RDMAP-4.8-3]
const (
	OK                    Fault = iota
	Catastrophic                // 0/00: for causes without a code of their own
	InvalidSTag                 // 1/00
	OutOfBounds                 // 1/01
	AccessRights                // 1/02
	NotAssociated               // 1/03
	Wrap                        // 1/04
	CannotInvalidate            // 1/09 [I-55]
	UnspecifiedProtection       // 1/ff
	InvalidVersion              // 2/05
	UnexpectedOpcode            // 2/06
	StreamCatastrophic          // 2/07
	GlobalCatastrophic          // 2/08
	CannotInvalidateOp          // 2/09: CannotInvalidate, as some peers report it
	Unspecified                 // 2/ff
	numFaults             = iota
)

var faults = [numFaults]struct {
	typ, code uint8
	text      string
}{
	OK:                    {0, 0, "no error"},
	Catastrophic:          {TypeCatastrophic, 0x00, "local catastrophic error"},
	InvalidSTag:           {TypeProtection, 0x00, "invalid STag"},
	OutOfBounds:           {TypeProtection, 0x01, "base or bounds violation"},
	AccessRights:          {TypeProtection, 0x02, "access rights violation"},
	NotAssociated:         {TypeProtection, 0x03, "STag not associated with the stream"},
	Wrap:                  {TypeProtection, 0x04, "TO wrap"},
	CannotInvalidate:      {TypeProtection, 0x09, "STag cannot be invalidated"},
	UnspecifiedProtection: {TypeProtection, 0xff, "unspecified protection error"},
	InvalidVersion:        {TypeOperation, 0x05, "invalid RDMAP version"},
	UnexpectedOpcode:      {TypeOperation, 0x06, "unexpected opcode"},
	StreamCatastrophic:    {TypeOperation, 0x07, "catastrophic error of the stream"},
	GlobalCatastrophic:    {TypeOperation, 0x08, "catastrophic error, global"},
	CannotInvalidateOp:    {TypeOperation, 0x09, "STag cannot be invalidated"},
	Unspecified:           {TypeOperation, 0xff, "unspecified error"},
}

// Code returns the error type and code of the fault on the wire.
func (f Fault) Code() (typ, code uint8) {
	if int(f) >= len(faults) {
		return TypeCatastrophic, 0
	}
	return faults[f].typ, faults[f].code
}

// String returns a short description.
func (f Fault) String() string {
	if int(f) >= len(faults) {
		return fmt.Sprintf("fault 0x%02x", uint8(f))
	}
	return faults[f].text
}

// FaultOf returns the fault of typ and code. ok is false for a fault missing in the table.
func FaultOf(typ, code uint8) (f Fault, ok bool) {
	if typ == TypeCatastrophic {
		return Catastrophic, true
	}
	for i := InvalidSTag; i < numFaults; i++ {
		if faults[i].typ == typ && faults[i].code == code {
			return i, true
		}
	}
	return OK, false
}

// Describe returns the meaning of the layer, error type and code of a Terminate message. For
// numbers missing in the tables of RFC 5040, 5041, 5044 and 6581, ok is false and the text shows
// the numbers.
func Describe(l Layer, typ, code uint8) (text string, ok bool) {
	switch l {
	case LayerRDMAP:
		if f, ok := FaultOf(typ, code); ok {
			return f.String(), true
		}
	case LayerDDP:
		if f, ok := ddp.FaultOf(ddp.ErrorType(typ), code); ok {
			return f.String(), true
		}
	case LayerLLP:
		if c := mpa.Code(code); typ == mpa.TerminateType && c >= mpa.CodeClosed && c <= mpa.CodeNoRTR {
			return c.String(), true
		}
	}
	return fmt.Sprintf("unknown error %d/%d/%02x", uint8(l), typ, code), false
}
