package nvmewire

// Kinds of data returned by Identify: values of the field CNS.
const (
	CNSNamespace   = 0x00
	CNSController  = 0x01
	CNSActive      = 0x02 // list of active namespaces
	CNSDescriptors = 0x03 // identifiers of a namespace
	CNSCommandSet  = 0x06 // properties of the controller for one I/O command set
)

// Types of controllers.
const (
	IOController        = 1
	DiscoveryController = 2
)

// Bits of ONCS, the optional commands a controller supports.
const (
	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
)

// An IdentifyController holds the fields a host uses. All other fields of the structure are zero,
// or have the only value allowed by the transport.
type IdentifyController struct { // [NVME-ID-1] [NVME-ID-2]
	Serial, Model, Firmware string // 20, 40 and 8 bytes
	MDTS                    uint8  // log2 of the greatest transfer in pages, 0 for no limit
	CntlID                  uint16
	Version                 uint32
	OAES                    uint32
	Type                    uint8
	AERL                    uint8  // asynchronous event requests at a time, minus 1
	KAS                     uint16 // granularity of the keep-alive time in units of 100 ms
	MaxCmd                  uint16
	Namespaces              uint32
	ONCS                    uint16
	WriteCache              bool
	SubNQN                  string
	InCapsule               uint32 // bytes of data in a capsule, a multiple of 16
}

// Append appends the PageLen bytes of the structure to b.
func (c *IdentifyController) Append(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, PageLen)...)
	d := b[n:]
	pad(d[4:24], c.Serial)
	pad(d[24:64], c.Model)
	pad(d[64:72], c.Firmware)
	d[77] = c.MDTS
	le.PutUint16(d[78:], c.CntlID)
	le.PutUint32(d[80:], c.Version)
	le.PutUint32(d[92:], c.OAES)
	le.PutUint32(d[96:], 1|1<<6) // CTRATT: host identifiers of 128 bits, traffic based keep alive
	d[111] = c.Type
	d[258] = 3 // ACL: Aborts at a time, minus 1
	d[259] = c.AERL
	d[260] = 1<<1 | 1    // FRMW: one slot, read only
	d[261] = 1<<1 | 1<<2 // LPA: effects log, offsets in logs
	le.PutUint16(d[320:], c.KAS)
	d[512], d[513] = 0x66, 0x44 // SQES, CQES: 64 and 16 bytes
	le.PutUint16(d[514:], c.MaxCmd)
	if c.Type == IOController {
		d[76] = 1 << 1 // CMIC: several controllers
		le.PutUint32(d[516:], c.Namespaces)
		le.PutUint16(d[520:], c.ONCS)
		if c.WriteCache {
			d[525] = 1
		}
	}
	le.PutUint32(d[536:], 1|1<<2|1<<20) // SGLS: keyed, with offsets
	copy(d[768:1023], c.SubNQN)
	le.PutUint32(d[1792:], (SQELen+c.InCapsule)/16) // IOCCSZ
	le.PutUint32(d[1796:], CQELen/16)               // IORCSZ
	d[1803] = 1                                     // MSDBD: one descriptor
	le.PutUint16(d[1804:], 1)                       // OFCS: Disconnect
	return b
}

// ParseIdentifyController decodes the structure. The error is ErrShort if b is too short.
func ParseIdentifyController(b []byte) (c IdentifyController, err error) {
	if len(b) < PageLen {
		return c, ErrShort
	}
	return IdentifyController{
		Serial: trim(b[4:24]), Model: trim(b[24:64]), Firmware: trim(b[64:72]), MDTS: b[77], CntlID: le.Uint16(b[78:]),
		Version: le.Uint32(b[80:]), OAES: le.Uint32(b[92:]), Type: b[111], AERL: b[259], KAS: le.Uint16(b[320:]),
		MaxCmd: le.Uint16(b[514:]), Namespaces: le.Uint32(b[516:]), ONCS: le.Uint16(b[520:]), WriteCache: b[525]&1 != 0,
		SubNQN: name(b[768:1024]), InCapsule: max(le.Uint32(b[1792:])*16, SQELen) - SQELen,
	}, nil
}

// An IdentifyNamespace holds the fields of a namespace a host uses.
type IdentifyNamespace struct { // [NVME-ID-4]
	Blocks     uint64
	BlockShift uint8 // log2 of the block size in bytes
	ReadOnly   bool
	ReadsZero  bool // deallocated blocks read as zeroes
	Preferred  uint16
	NGUID      [16]byte
}

// Append appends the PageLen bytes of the structure to b.
func (n *IdentifyNamespace) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, PageLen)...)
	d := b[at:]
	for i := range 3 { // NSZE, NCAP, NUSE
		le.PutUint64(d[8*i:], n.Blocks)
	}
	d[30] = 1 // NMIC: shared
	if n.ReadsZero {
		d[33] = 1 | 1<<3 // DLFEAT: reads as zeroes, Write Zeroes may deallocate
	}
	if n.Preferred > 0 {
		d[24] = 1 << 4 // NSFEAT: NPWG, NPWA, NPDG and NPDA hold
		for i := range 4 {
			le.PutUint16(d[64+2*i:], n.Preferred-1)
		}
	}
	if n.ReadOnly {
		d[99] = 1 // NSATTR: write protected
	}
	copy(d[104:], n.NGUID[:])
	d[130] = n.BlockShift // LBAF0
	return b
}

// ParseIdentifyNamespace decodes the structure. The error is ErrShort if b is too short.
func ParseIdentifyNamespace(b []byte) (n IdentifyNamespace, err error) {
	if len(b) < PageLen {
		return n, ErrShort
	}
	n = IdentifyNamespace{Blocks: le.Uint64(b), BlockShift: b[130], ReadOnly: b[99]&1 != 0, ReadsZero: b[33]&7 == 1}
	if b[24]&(1<<4) != 0 {
		n.Preferred = le.Uint16(b[64:]) + 1
	}
	copy(n.NGUID[:], b[104:])
	return n, nil
}

// AppendDescriptors appends the PageLen bytes to identify a namespace: the UUID, the same value as
// NGUID, and the command set.
func AppendDescriptors(b []byte, uuid [16]byte) []byte { // [NVME-ID-5]
	n := len(b) + PageLen
	for _, typ := range []byte{2, 3} {
		b = append(append(b, typ, 16, 0, 0), uuid[:]...)
	}
	b = append(b, 4, 1, 0, 0, 0)
	return append(b, make([]byte, n-len(b))...)
}

// AppendList appends PageLen bytes with the namespace IDs ids, of which the first 1,024 fit.
func AppendList(b []byte, ids []uint32) []byte {
	n := len(b) + PageLen
	for _, id := range ids[:min(len(ids), PageLen/4)] {
		b = le.AppendUint32(b, id)
	}
	return append(b, make([]byte, n-len(b))...)
}

func pad(d []byte, s string) {
	for i := copy(d, s); i < len(d); i++ {
		d[i] = ' '
	}
}

func trim(b []byte) string {
	for len(b) > 0 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return string(b)
}
