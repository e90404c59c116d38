package nvmewire

// A DSMRange is a range of blocks of a Dataset Management command.
type DSMRange struct { // [NVME-IO-5]
	Blocks uint32 // number of blocks, without the usual "minus 1"
	First  uint64
}

// DSMRangeLen is the length in bytes of a range.
const DSMRangeLen = 16

// ParseDSMRange decodes a range. The error is ErrShort if b is too short.
func ParseDSMRange(b []byte) (r DSMRange, err error) {
	if len(b) < DSMRangeLen {
		return r, ErrShort
	}
	return DSMRange{le.Uint32(b[4:]), le.Uint64(b[8:])}, nil
}

// Append appends the DSMRangeLen bytes of the range to b.
func (r DSMRange) Append(b []byte) []byte {
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, r.Blocks)
	return le.AppendUint64(b, r.First)
}
