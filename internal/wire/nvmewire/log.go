package nvmewire

// Log pages.
const (
	LogErrors    = 0x01
	LogSMART     = 0x02
	LogFirmware  = 0x03
	LogChanged   = 0x04 // changed namespaces
	LogEffects   = 0x05
	LogDiscovery = 0x70
)

// Features.
const (
	FeatureWriteCache = 0x06
	FeatureQueues     = 0x07
	FeatureEvents     = 0x0b
	FeatureKeepAlive  = 0x0f
	FeatureHostID     = 0x81
)

// EventNamespaces is the bit for changes of namespaces in FeatureEvents and OAES.
const EventNamespaces = 1 << 8

// NoticeNamespaces is the result of an event request: a notice, and the log page to read.
const NoticeNamespaces = 0x02 | LogChanged<<16 // [NVME-AER-1]

// A LogRequest has the fields of Get Log Page.
type LogRequest struct { // [NVME-ADM-3]
	Page   uint8
	Retain bool   // do not clear the event of the page
	Length uint64 // bytes
	Offset uint64 // bytes
}

// LogRequest returns the fields of a Get Log Page.
func (s *SQE) LogRequest() LogRequest {
	return LogRequest{
		Page: uint8(s.CDW[0]), Retain: s.CDW[0]>>15&1 != 0,
		Length: (uint64(s.CDW[0]>>16|s.CDW[1]<<16) + 1) * 4, Offset: s.CDW64(2),
	}
}

// SetLogRequest puts the fields into the command.
func (s *SQE) SetLogRequest(l LogRequest) {
	n := uint32(l.Length/4 - 1)
	s.Opcode = OpGetLogPage
	s.CDW = [6]uint32{uint32(l.Page) | n<<16, n >> 16, uint32(l.Offset), uint32(l.Offset >> 32)}
	if l.Retain {
		s.CDW[0] |= 1 << 15
	}
}

// AppendEffects appends the log page of supported commands; io lists the opcodes of I/O queues.
func AppendEffects(b []byte, io []uint8) []byte {
	n := len(b)
	b = append(b, make([]byte, PageLen)...)
	d := b[n:]
	for op := range adminNames {
		d[4*int(op)] = 1 // supported
	}
	for _, op := range io {
		d[1024+4*int(op)] = 1
		if op == OpWrite || op == OpWriteZeroes || op == OpDSM {
			d[1024+4*int(op)] |= 2 // changes blocks
		}
	}
	return b
}

// AppendHealth appends the health log of a device without problems.
func AppendHealth(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, 512)...)
	le.PutUint16(b[n+1:], 300) // temperature in kelvin
	b[n+3], b[n+4] = 100, 10   // available spare and its threshold in percent
	return b
}

// AppendFirmware appends the log page of a single firmware slot with the given revision.
func AppendFirmware(b []byte, revision string) []byte {
	n := len(b)
	b = append(b, make([]byte, 512)...)
	b[n] = 1
	pad(b[n+8:n+16], revision)
	return b
}

// A DiscoveryEntry names a subsystem and its address.
type DiscoveryEntry struct { // [NVME-DISC-2]
	IPv6    bool
	PortID  uint16
	Service string // TCP port in decimal
	Address string
	SubNQN  string
}

// DiscoveryHeaderLen and DiscoveryEntryLen are lengths in bytes.
const (
	DiscoveryHeaderLen = 1024
	DiscoveryEntryLen  = 1024
)

// AppendDiscovery appends the discovery log page.
func AppendDiscovery(b []byte, generation uint64, entries []DiscoveryEntry) []byte { // [NVME-DISC-1]
	b = le.AppendUint64(b, generation)
	b = le.AppendUint64(b, uint64(len(entries)))
	b = append(b, make([]byte, DiscoveryHeaderLen-16)...)
	for _, e := range entries {
		n := len(b)
		b = append(b, make([]byte, DiscoveryEntryLen)...)
		d := b[n:]
		d[0], d[1], d[2] = 1, 1, 2 // RDMA, IPv4, an NVM subsystem
		if e.IPv6 {
			d[1] = 2
		}
		le.PutUint16(d[4:], e.PortID)
		le.PutUint16(d[6:], 0xffff) // any controller
		le.PutUint16(d[8:], 32)     // ASQSZ
		pad(d[32:64], e.Service)
		copy(d[256:511], e.SubNQN)
		pad(d[512:768], e.Address)
		d[768], d[769], d[770] = 1, 5, 1 // connected queue pairs, iWARP, RDMA_CM
	}
	return b
}

// ParseDiscovery decodes the complete entries in b, possibly fewer than in the page. The error is
// ErrShort if b has no complete header.
func ParseDiscovery(b []byte) (generation uint64, entries []DiscoveryEntry, err error) {
	if len(b) < DiscoveryHeaderLen {
		return 0, nil, ErrShort
	}
	n := le.Uint64(b[8:])
	generation = le.Uint64(b)
	for b = b[DiscoveryHeaderLen:]; n > 0 && len(b) >= DiscoveryEntryLen; n-- {
		entries = append(entries, DiscoveryEntry{
			IPv6: b[1] == 2, PortID: le.Uint16(b[4:]), Service: trim(b[32:64]),
			Address: trim(b[512:768]), SubNQN: name(b[256:512]),
		})
		b = b[DiscoveryEntryLen:]
	}
	return generation, entries, nil
}
