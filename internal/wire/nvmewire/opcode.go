package nvmewire

import "fmt"

// Opcodes of the admin queue.
const (
	OpGetLogPage  = 0x02
	OpIdentify    = 0x06
	OpAbort       = 0x08
	OpSetFeatures = 0x09
	OpGetFeatures = 0x0a
	OpAsyncEvent  = 0x0c
	OpKeepAlive   = 0x18
	OpFabrics     = 0x7f // for every queue, see the types below
)

// Opcodes of I/O queues.
const (
	OpFlush       = 0x00
	OpWrite       = 0x01
	OpRead        = 0x02
	OpCompare     = 0x05
	OpWriteZeroes = 0x08
	OpDSM         = 0x09
)

// Types of fabrics commands.
const (
	FCPropertySet = 0x00
	FCConnect     = 0x01
	FCPropertyGet = 0x04
	FCDisconnect  = 0x08
)

var (
	adminNames = map[uint8]string{
		OpGetLogPage: "Get Log Page", OpIdentify: "Identify", OpAbort: "Abort", OpSetFeatures: "Set Features",
		OpGetFeatures: "Get Features", OpAsyncEvent: "Asynchronous Event Request", OpKeepAlive: "Keep Alive",
	}
	ioNames = map[uint8]string{
		OpFlush: "Flush", OpWrite: "Write", OpRead: "Read", OpCompare: "Compare", OpWriteZeroes: "Write Zeroes",
		OpDSM: "Dataset Management",
	}
	fabricsNames = map[uint8]string{
		FCPropertySet: "Property Set", FCConnect: "Connect", FCPropertyGet: "Property Get", FCDisconnect: "Disconnect",
	}
)

// Name returns the name of the command; admin means that the command arrived on an admin queue.
func (s *SQE) Name(admin bool) string {
	names, code := ioNames, s.Opcode
	switch {
	case s.Opcode == OpFabrics:
		names, code = fabricsNames, s.FCType
	case admin:
		names = adminNames
	}
	if n, ok := names[code]; ok {
		return n
	}
	if s.Opcode == OpFabrics {
		return fmt.Sprintf("fabrics type %#02x", code)
	}
	return fmt.Sprintf("opcode %#02x", code)
}
